"""Requests against the facts: exact, reasoned, and refused with what exists instead."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.requirements import Requirement

from provision import compat
from provision.errors import NoSuchBuild
from provision.model import Resolution
from provision.pipeline import matrix, spec


def resolve(**asked: Any) -> Resolution:
    return matrix.resolve(spec.combine({}, asked, name=""))


def requirements(resolution: Resolution) -> list[str]:
    return [pin.requirement for pin in resolution.pins]


def test_the_main_request() -> None:
    found = resolve(torch="2.3", cuda="12.1")
    assert found.spec.name == "torch2.3-cuda12.1-py311"
    assert (found.torch, found.local_version, found.source) == ("2.3.1", "2.3.1+cu121", "wheels")
    assert (found.nccl, found.cudnn, found.python, found.driver_floor) == ("2.20.5", "8.9.2.26", "3.11", "525.60.13")
    assert {"torch==2.3.1", "torchvision==0.18.1", "torchaudio==2.3.1", "nvidia-nccl-cu12==2.20.5", "python=3.11"} <= set(
        requirements(found)
    )
    assert dict(found.virtual_packages)["__cuda"] == "12.1"


@pytest.mark.parametrize("release", compat.releases().values(), ids=lambda release: release.version)
def test_the_index_default_of_every_release_resolves_to_wheels(release: compat.Release) -> None:
    default = next(build for build in release.wheels if build.on_pypi)
    found = resolve(torch=release.version, cuda=default.cuda)
    assert (found.source, found.torch, found.cuda) == ("wheels", release.version, default.cuda)
    assert f"torch=={release.version}" in requirements(found)
    assert found.python in (default.python or ())
    for pin in found.pins:
        assert pin.reason and pin.source
        if pin.manager == "pip":
            Requirement(pin.requirement)


def test_auto_decides_by_facts() -> None:
    assert resolve(torch="2.3", cuda="11.8").source == "pytorch"
    assert resolve(torch="2.6", cuda="12.6").source == "conda-forge"
    beyond = resolve(torch="2.9", cuda="13.0")
    assert (beyond.source, beyond.needs_local_build) == ("wheels", True)
    assert "torch==2.9.1+cu130" in requirements(beyond)


def test_pytorch_channel_pins_the_build_string_and_the_order() -> None:
    found = resolve(torch="2.3", cuda="12.1", source="pytorch")
    assert found.spec.name == "torch2.3-cuda12.1-py311-pytorch"
    assert found.channels == ("pytorch", "nvidia", "conda-forge")
    assert {"pytorch::pytorch=2.3.1=py3.11_cuda12.1*", "pytorch::pytorch-cuda=12.1", "mkl<2024.1"} <= set(requirements(found))


def test_conda_forge_pins_the_build_string_and_lets_nccl_be_chosen() -> None:
    found = resolve(torch="2.6", cuda="12.6", source="conda-forge", nccl="2.23")
    assert {"pytorch=2.6.0=cuda126*", "cuda-version=12.6", "nccl=2.23.*"} <= set(requirements(found))


def test_cpu_is_asked_for_as_a_cpu_build() -> None:
    found = resolve(torch="2.13", cpu=True, companions=False)
    assert (found.spec.name, found.local_version, found.cuda) == ("torch2.13-cpu-py311", "2.13.0+cpu", None)
    assert "__cuda" not in dict(found.virtual_packages)


def test_numpy_and_setuptools_by_release() -> None:
    assert {"numpy<2", "setuptools<70"} <= set(requirements(resolve(torch="2.0", cuda="11.7")))
    assert "numpy" in requirements(resolve(torch="2.3", cuda="12.1"))


def test_no_torchaudio_after_2_11() -> None:
    assert not any(line.startswith("torchaudio") for line in requirements(resolve(torch="2.15", cuda="13.2")))


def test_unknown_torch_lists_the_known() -> None:
    with pytest.raises(NoSuchBuild, match=r"torch 9\.9 is not in the table.*newest is 2\.15\.0"):
        resolve(torch="9.9", cuda="12.1")


def test_absent_combination_lists_the_nearest_per_source() -> None:
    with pytest.raises(NoSuchBuild) as caught:
        resolve(torch="2.3", cuda="12.6")
    text = str(caught.value)
    assert "wheels: 11.8*, 12.1" in text
    assert "pytorch: 11.8, 12.1" in text
    assert "conda-forge: 11.8, 12.0" in text
    assert "conda-forge: 2.5, 2.6, 2.7" in text


def test_never_rounded_1_12_has_no_12_1() -> None:
    with pytest.raises(NoSuchBuild, match=r"torch 1\.12 with CUDA 12\.1 does not exist"):
        resolve(torch="1.12", cuda="12.1")


def test_conda_forge_never_had_12_1() -> None:
    with pytest.raises(NoSuchBuild, match=r"does not exist in source conda-forge"):
        resolve(torch="2.3", cuda="12.1", source="conda-forge")


def test_unsupported_python_lists_the_supported() -> None:
    with pytest.raises(NoSuchBuild, match=r"no build for Python 3\.13.*3\.8, 3\.9, 3\.10, 3\.11, 3\.12"):
        resolve(torch="2.3", cuda="12.1", python="3.13")


def test_nccl_of_wheels_cannot_be_exchanged() -> None:
    assert resolve(torch="2.3", cuda="12.1", nccl="2.20").nccl == "2.20.5"
    with pytest.raises(NoSuchBuild, match=r"carries NCCL 2\.27\.5, not 2\.28.*2\.10\.0 \+ CUDA 13\.0"):
        resolve(torch="2.9", cuda="12.8", nccl="2.28")
    with pytest.raises(NoSuchBuild, match="not known"):
        resolve(torch="1.13", cuda="11.7", nccl="2.14")
