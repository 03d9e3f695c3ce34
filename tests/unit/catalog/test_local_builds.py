"""Local versions of wheels that are built for one torch."""

from __future__ import annotations

import pytest
from packaging.version import Version

from provision import sources
from provision.catalog import TorchBuild

BUILD = TorchBuild(torch="2.3.1", cuda="12.1", cxx11_abi=False)


@pytest.mark.parametrize(
    "local",
    [
        "pt23cu121",
        "torch2.3.0cu121",
        "torch230cu121",
        "cu122torch2.3cxx11abiFALSE",
        "cu12torch2.3",
        "cu121",
        "git1a2b3c",
    ],
)
def test_wheels_that_fit(local: str) -> None:
    assert BUILD.mismatch(Version(f"1.0+{local}")) == ""


@pytest.mark.parametrize(
    "local,problem",
    [
        ("pt24cu121", "torch 2.4"),
        ("pt210cu128", "torch 2.10"),
        ("torch2100cu130", "torch 2.10"),
        ("torch240cu121", "torch 2.4"),
        ("cu121torch2.4cxx11abiFALSE", "torch 2.4"),
        ("pt23cu118", "CUDA 11.8"),
        ("cu11torch2.3", "CUDA 11"),
        ("pt23cpu", "CPUs"),
        ("cu122torch2.3cxx11abiTRUE", "cxx11abi TRUE"),
    ],
)
def test_wheels_that_do_not_fit(local: str, problem: str) -> None:
    assert problem in BUILD.mismatch(Version(f"1.0+{local}"))


def test_builds_without_cuda() -> None:
    without = TorchBuild(torch="2.3.1", cuda=None, cxx11_abi=False)
    assert without.mismatch(Version("1.0+pt23cpu")) == ""
    assert "CUDA 12.1" in without.mismatch(Version("1.0+pt23cu121"))


@pytest.mark.parametrize(
    "build,is_new",
    [
        (("2.3.1", "12.1", "wheels", "linux-64"), False),  # torch.compiled_with_cxx11_abi()
        (("2.5.1", "12.4", "pytorch", "linux-64"), False),
        (("2.6.0", "12.4", "wheels", "linux-64"), False),
        (("2.6.0", "12.6", "wheels", "linux-64"), True),
        (("2.7.0", None, "wheels", "linux-64"), True),
        (("2.3.1", "12.1", "conda-forge", "linux-64"), True),
        (("2.5.1", None, "wheels", "linux-aarch64"), False),
        (("2.6.0", None, "wheels", "linux-aarch64"), True),
    ],
)
def test_the_abi_of_a_build(build: tuple[str, str | None, str, str], is_new: bool) -> None:
    torch, cuda, source, platform = build
    assert sources.by_name(source).torch_build(torch, cuda, platform).cxx11_abi is is_new
