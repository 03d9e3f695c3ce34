"""Facts of a release from its wheels on an index; a release that only the index knows."""

from __future__ import annotations

from typing import Any

import pytest
from pypi_simple import DistributionPackage

from provision.adapters.uv.linux_wheels import LinuxWheel, linux_wheels
from provision.workflow import index_facts as facts
from tests.paths import DATA

CAPTURED = DATA / "wheels"


def captured(name: str) -> list[str]:
    return (CAPTURED / f"torch-{name}.txt").read_text().splitlines()


def files(
    *names: str, requires_python: str | None = None, yanked: bool = False
) -> list[LinuxWheel]:
    def package(name: str) -> DistributionPackage:
        kind = "wheel" if name.endswith(".whl") else "sdist"
        return DistributionPackage(
            filename=name, url=f"u/{name}", project="torch", version=None, package_type=kind, digests={},
            requires_python=requires_python, has_sig=None, is_yanked=yanked,
        )  # fmt: skip

    return list(linux_wheels(map(package, names)))


# Metadata


@pytest.mark.parametrize(
    ("name", "machine", "findings_of"),
    [
        ("1.12.1-x86_64", "x86_64", (None, None, None, None, "none")),
        ("1.13.1-x86_64", "x86_64", ("11.7", None, None, "8.5.0.96", "none")),
        ("2.3.1-x86_64", "x86_64", ("12.1", None, "2.20.5", "8.9.2.26", "==2.3.1")),
        ("2.3.1-aarch64", "aarch64", (None, None, None, None, "none")),
        ("2.9.1-x86_64", "x86_64", ("12.8", None, "2.27.5", "9.10.2.21", "==3.5.1")),
        ("2.11.0-aarch64", "aarch64", ("13.0", "13.0.2", "2.28.9", "9.19.0.56", "==3.6.0")),
        ("2.15.0-x86_64", "x86_64", ("13.2", "13.2.2", "2.30.7", "9.26.0.51", "~=3.9.0")),
    ],
)
def test_pins(name: str, machine: str, findings_of: tuple[str | None, ...]) -> None:
    read = facts.read_pins(captured(name), machine, "3.11")
    assert (read.cuda, read.toolkit, read.nccl, read.cudnn, read.triton) == findings_of


# Names


def test_names() -> None:
    result = files(
        "torch-2.15.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "torch-2.15.0-cp314-cp314t-manylinux_2_28_aarch64.whl",
        "torch-2.15.0-cp313-cp313-macosx_11_0_arm64.whl",
        "torch-2.15.0-cp313-cp313-win_amd64.whl",
        "torch-2.16.0rc1-cp313-cp313-manylinux_2_28_x86_64.whl",
        "torch-1.12.0-cp37-cp37m-manylinux1_x86_64.whl",
        "torch-2.6.0+cu126-cp311-cp311-linux_x86_64.whl",
        "torch-2.15.0.tar.gz",
        "not a wheel.whl",
    )
    assert [(file.base, file.python, file.machine, file.version.local) for file in result] == [
        ("2.15.0", "3.13", "x86_64", None),
        ("2.15.0", "3.14t", "aarch64", None),
        ("1.12.0", "3.7", "x86_64", None),
        ("2.6.0", "3.11", "x86_64", "cu126"),
    ]
    assert not files("torch-2.15.0-cp313-cp313-manylinux_2_28_x86_64.whl", yanked=True)


def test_rebuild_counts_as_its_release() -> None:
    result = files(
        "torch-2.10.0-cp310-cp310-manylinux_2_28_x86_64.whl",
        "torch-2.10.0-3-cp310-cp310-manylinux_2_28_x86_64.whl",
    )
    assert [file.name for file in facts.of_machine(result, "2.10.0", "x86_64")] == [
        "torch-2.10.0-3-cp310-cp310-manylinux_2_28_x86_64.whl"
    ]


@pytest.mark.parametrize(
    ("tags", "floor"),
    [
        (["manylinux_2_28_x86_64"], "2.28"),
        (["manylinux2014_aarch64"], "2.17"),
        (["manylinux1_x86_64"], None),  # it promises 2.5, and torch's wheels never ran there
        (["manylinux_2_28_x86_64", "manylinux2014_x86_64"], None),
    ],
)
def test_glibc_by_platform_tag(tags: list[str], floor: str | None) -> None:
    assert facts.glibc(files(*(f"torch-2.0.0-cp310-cp310-{tag}.whl" for tag in tags))) == floor


def test_universal_wheel_covers_every_python() -> None:
    torch = files(
        "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.15.0-cp315-cp315-manylinux_2_28_x86_64.whl",
    )
    assert (
        facts.fewer_pythons(torch, [files("torchvision-0.29.2-py3-none-manylinux_2_28_x86_64.whl")])
        is None
    )
    assert (
        facts.fewer_pythons(
            torch, [files("torchvision-0.29.2-cp310-abi3-manylinux_2_28_x86_64.whl")]
        )
        is None
    )
    assert facts.fewer_pythons(
        torch, [files("torchvision-0.29.1-cp311-cp311-manylinux_2_28_x86_64.whl")]
    ) == ["3.11"]
    limited = files(
        "torchvision-0.29.2-py3-none-manylinux_2_28_x86_64.whl", requires_python=">=3.12"
    )
    assert facts.fewer_pythons(torch, [limited]) == ["3.15"]


def test_architectures_are_read_from_the_library() -> None:
    # as they stand in the library of torch 2.8.0: the text before it has no end of its own
    library = b"\0ipc_hsm_70 sm_75 sm_120 compute_120\0\0/pytorch/torch"
    row = facts.compiled_for("2.8.0", "x86_64", library)
    assert row is not None and (row["sm"], row["ptx"]) == (["sm_70", "sm_75", "sm_120"], True)
    for library in (b"sm_90\0nothing", b"sm_80 sm_90\0sm_70 sm_75\0"):
        assert facts.compiled_for("2.8.0", "x86_64", library) is None


# Companions


def made_for(*requirements: str) -> tuple[str, ...]:
    return requirements


def test_companions() -> None:
    candidates = [
        ("0.29.2", made_for("numpy", "torch>=2.14.0")),
        ("0.29.0", made_for("torch==2.14.0")),
        ("0.15.1", made_for("torch (==2.0.0)")),
        ("0.15.0", made_for("torch==2.0.0+cu117")),
    ]
    assert facts.companion("2.15.0", candidates) == ("0.29.2", False)
    assert facts.companion("2.14.0", candidates) == ("0.29.0", True)
    assert facts.companion("2.0.0", candidates) == ("0.15.1", True)
    assert facts.companion("1.13.0", candidates) is None
    assert facts.companion(
        "2.12.0", [("2.11.0", made_for()), ("2.10.0", made_for("torch==2.10.0"))]
    ) == ("2.11.0", False)


def test_only_needed_companions_are_read() -> None:
    def candidates() -> Any:
        yield "0.29.2", made_for("torch>=2.14.0")
        yield "0.28.0", made_for("torch==2.13.0")
        raise AssertionError("read on")

    assert facts.companion("2.15.0", candidates()) == ("0.29.2", False)
