"""Requests against the facts: exact, reasoned, and refused with what exists instead."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from packaging.requirements import Requirement

from provision import catalog, resolver, sources
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.platforms import PLATFORMS
from provision.core.types import HostGpus, Resolution
from provision.resolver import spec


def resolve(**options: Any) -> Resolution:
    return resolver.resolve(spec.combine({}, options, name=""))


def requirements(resolution: Resolution) -> list[str]:
    return [pin.requirement for pin in resolution.pins]


def test_main_request() -> None:
    resolution = resolve(torch="2.3", cuda="12.1")
    assert resolution.spec.name == "torch2.3-cuda12.1-py311"
    assert (resolution.torch, resolution.local_version, resolution.source) == (
        "2.3.1",
        "2.3.1+cu121",
        "wheels",
    )
    assert (resolution.nccl, resolution.cudnn, resolution.python, resolution.driver_floor) == (
        "2.20.5",
        "8.9.2.26",
        "3.11",
        "525.60.13",
    )
    assert {
        "torch==2.3.1",
        "torchvision==0.18.1",
        "torchaudio==2.3.1",
        "nvidia-nccl-cu12==2.20.5",
        "python=3.11",
    } <= set(requirements(resolution))
    assert dict(resolution.virtual_packages)["__cuda"] == "12.1"


@pytest.mark.parametrize(
    "release", catalog.releases().values(), ids=lambda release: release.version
)
def test_the_index_default_of_every_release_resolves_to_wheels(release: catalog.Release) -> None:
    default = next(build for build in release.wheels if build.on_pypi)
    resolution = resolve(torch=release.version, cuda=default.cuda)
    assert (resolution.source, resolution.torch, resolution.cuda) == (
        "wheels",
        release.version,
        default.cuda,
    )
    assert f"torch=={release.version}" in requirements(resolution)
    assert resolution.python in (default.python or ())
    for pin in resolution.pins:
        assert pin.reason and pin.source
        if pin.manager == "pip":
            Requirement(pin.requirement)


def test_auto_source_is_decided_by_facts() -> None:
    assert resolve(torch="2.3", cuda="11.8").source == "pytorch"
    assert resolve(torch="2.6", cuda="12.6").source == "conda-forge"
    beyond = resolve(torch="2.9", cuda="13.0")
    assert (beyond.source, beyond.needs_local_build) == ("wheels", True)
    assert "torch==2.9.1+cu130" in requirements(beyond)


def test_possible_fit_is_preferred_to_no_fit() -> None:
    """The wheels need glibc 2.17; which one the pytorch channel's build needs no source says."""
    resolution = resolve(torch="2.3", cuda="12.1", glibc="2.12")
    assert resolution.source == "pytorch"
    assert ["which glibc" in row.reason for row in resolution.warnings if row.what == "glibc"] == [
        True
    ]


def test_pytorch_channel_pins_build_string_and_channel_order() -> None:
    resolution = resolve(torch="2.3", cuda="12.1", source="pytorch")
    assert resolution.spec.name == "torch2.3-cuda12.1-py311-pytorch"
    assert resolution.channels == ("pytorch", "nvidia", "conda-forge")
    assert {
        "pytorch::pytorch=2.3.1=py3.11_cuda12.1*",
        "pytorch::pytorch-cuda=12.1",
        "mkl<2024.1",
    } <= set(requirements(resolution))


def test_conda_forge_pins_the_build_string_and_leaves_nccl_open() -> None:
    resolution = resolve(torch="2.6", cuda="12.6", source="conda-forge")
    assert {"pytorch=2.6.0=cuda126*", "cuda-version=12.6", "nccl"} <= set(requirements(resolution))


def test_numpy_and_setuptools_by_release() -> None:
    assert {"numpy<2", "setuptools<70"} <= set(requirements(resolve(torch="2.0", cuda="11.7")))
    assert "numpy" in requirements(resolve(torch="2.3", cuda="12.1"))


def refusal(**options: Any) -> str:
    """The error, and with it what -v adds."""
    with pytest.raises(NoSuchBuild) as caught:
        resolve(**options)
    return f"{caught.value}\n{caught.value.details}"


def test_refusal_begins_with_the_nearest_and_leaves_sources_to_verbose() -> None:
    with pytest.raises(NoSuchBuild) as caught:
        resolve(torch="2.3", cuda="13.9")
    text = str(caught.value)
    assert text.startswith(
        "There is no build for torch 2.3, CUDA 13.9.\n"
        "Nearest:\n  `--torch 2.3 --cuda 12.1` (wheels)\nWhy"
    )
    assert text.endswith("  conda-forge has torch 2.3 with CUDA 11.8, 12.0 only")
    assert "PyPI" not in text and "@" not in text
    assert "the wheels have torch 2.3 with CUDA 11.8, 12.1 only (PyPI" in caught.value.details


def test_unknown_torch_lists_known_releases() -> None:
    message = refusal(torch="9.9", cuda="12.1")
    assert "torch 9.9 is not in the table of known releases (1.12.0 to 2.15.0)" in message
    assert "Nearest:\n  `--torch 2.5.1 --cuda 12.1` (pytorch)" in message


def test_missing_combination_lists_each_sources_builds_and_the_nearest() -> None:
    message = refusal(torch="2.3", cuda="12.6")
    for source, cudas in (
        ("the wheels have", "11.8, 12.1"),
        ("the pytorch channel has", "11.8, 12.1"),
        ("conda-forge has", "11.8, 12.0"),
    ):
        assert re.search(rf"{source} torch 2\.3 with CUDA {cudas} only \(.+\)", message)
    assert (
        "Nearest:\n  `--torch 2.3 --cuda 12.1` (wheels)\n  `--torch 2.5.1 --cuda 12.6` (conda-forge)"
        in message
    )


def test_torch_1_12_is_never_rounded_to_cuda_12_1() -> None:
    assert "There is no build for torch 1.12, CUDA 12.1" in refusal(torch="1.12", cuda="12.1")


def test_pytorch_channel_ended() -> None:
    for options in ({"cuda": "12.8"}, {"cpu": True}):
        assert "the pytorch channel has no torch 2.9 (pytorch/pytorch#138506" in refusal(
            torch="2.9", source="pytorch", **options
        )


def test_unsupported_python_lists_supported_ones() -> None:
    message = refusal(torch="2.3", cuda="12.1", python="3.13")
    assert re.search(
        r"no build for Python 3\.13 from the wheels.* only for 3\.8, 3\.9, 3\.10, 3\.11, 3\.12 \(PyPI file list",
        message,
    )
    assert (
        "`--torch 2.3 --cuda 12.1 --python 3.12` (wheels)\n  `--torch 2.5.1 --cuda 12.1 --python 3.13`"
        in message
    )


@pytest.mark.parametrize("text", ["nccl=2.29.2", "conda-forge::nccl ==2.29.2"])
def test_a_bad_nccl_that_conda_is_to_install_is_said(text: str) -> None:
    resolution = resolve(torch="2.10", cuda="12.9", source="conda-forge", conda=[text])
    assert resolution.nccl == "2.29.2"
    assert "hang-2.29.2" in {warning.what for warning in resolution.warnings}


@pytest.mark.parametrize(
    "torch,named,written",
    [
        ("2.3", "torch2.3", "2.3"),
        ("2.3.0", "torch2.3.0", "2.3.0"),
        ("==2.3", "torch2.3.0", "2.3.0"),
        ("<2.3.1", "torch2.3.0", "2.3.0"),
        (">=2.3.1,<2.4", "torch2.3.1", "2.3.1"),
        (">=2.3,<2.4", "torch2.3", "2.3.1"),
        ("==2.3.*", "torch2.3", "2.3.1"),
        ("<=2.3.1", "torch2.3.1", "2.3.1"),
    ],
)
def test_minor_version_is_named_only_for_whole_minor_requests(
    torch: str, named: str, written: str
) -> None:
    resolution = resolve(torch=torch, cuda="12.1")
    assert resolution.spec.name == f"{named}-cuda12.1-py311"
    assert resolution.spec.torch == written


@pytest.mark.parametrize(
    "options,torch,cuda,name",
    [
        ({"torch": "2", "cuda": "12.1"}, "2.5.1", "12.1", "torch2.5-cuda12.1-py311"),
        ({"torch": ">=2.3,<2.5", "cuda": "12.1"}, "2.4.1", "12.1", "torch2.4-cuda12.1-py311"),
        ({"torch": "latest", "cuda": "13"}, "2.15.0", "13.2", "torch2.15-cuda13.2-py311"),
        ({"torch": "2.4", "cuda": "12", "source": "wheels"}, "2.4.1", "12.4", "torch2.4-cuda12.4-py311-wheels"),
        ({"torch": ">=2", "cpu": True, "python": "3.8"}, "2.4.1", None, "torch2.4-cpu-py38"),
    ],
)  # fmt: skip
def test_open_choices_become_the_newest_that_fits(
    options: dict[str, Any], torch: str, cuda: str | None, name: str
) -> None:
    resolution = resolve(**options)
    assert (resolution.torch, resolution.cuda, resolution.spec.name) == (torch, cuda, name)
    assert (resolution.spec.torch, resolution.spec.cuda) == (
        torch if options["torch"] != "2.4" else "2.4",
        cuda,
    )  # what spec.yml will hold


H100 = HostGpus(driver="535.183.01", gpus=("sm_90",))


def test_auto_cuda_is_the_newest_the_machine_runs() -> None:
    request = spec.combine({}, {"torch": "2.5", "cuda": "auto", "source": "wheels"}, name="")
    resolution = resolver.resolve(request, H100)
    assert (resolution.cuda, resolution.spec.cuda, resolution.spec.gpu, resolution.spec.driver) == (
        "12.4",
        "12.4",
        (),
        None,
    )
    old = resolver.resolve(
        dataclasses.replace(request, torch="2.4"),
        HostGpus(driver="470.57.02", gpus=("Tesla V100-SXM2-16GB",)),
    )
    assert old.cuda == "11.8"


def test_auto_cuda_respects_the_builds_architectures() -> None:
    """2.8's cu129 and cu128 have sm_70; CUDA 13 and 2.11's cu128 do not."""
    options = {"cuda": "auto", "gpu": ["V100"], "driver": "590.44.01", "source": "wheels"}
    assert resolve(torch="2.8", **options).cuda == "12.9"
    assert resolve(torch="2.11", **options).cuda == "12.6"
    assert "V100 is sm_70" in refusal(torch="2.15", **options)


def test_auto_cuda_prefers_known_to_possible() -> None:
    """Of 2.4 with CUDA 12.4 the pytorch channel is the usual source, and for which GPUs its build
    is, is not known; of the wheel it is. What is found for this machine is written down so that it
    is the same on the next."""
    machine = HostGpus(driver="550.54.15", gpus=("sm_90",))
    resolution = resolver.resolve(
        spec.combine({}, {"torch": "2.4", "cuda": "auto"}, name=""), machine
    )
    assert (
        resolution.cuda,
        resolution.source,
        resolution.spec.source,
        resolution.warnings[0].what,
    ) == (
        "12.4",
        "wheels",
        "wheels",
        "cuda-graph-hang",
    )
    assert resolution.spec.name == "torch2.4-cuda12.4-py311-wheels"
    assert resolver.resolve(resolution.spec).pins == resolution.pins
    named = resolve(torch="2.4", cuda="auto", gpu=["H100"], driver="550.54.15")
    assert (named.spec.source, named.source, named.spec.name) == (
        "auto",
        "wheels",
        "torch2.4-cuda12.4-py311-wheels",
    )


def test_auto_cuda_takes_a_possible_fit_only_as_last_resort() -> None:
    resolution = resolve(
        torch="2.3", cuda="auto", gpu=["V100"], driver="535.129.03", source="pytorch"
    )  # no source says what it holds
    assert (resolution.torch, resolution.cuda) == ("2.3.1", "12.1")
    assert "gpu" in [warning.what for warning in resolution.warnings]


def test_auto_cuda_needs_a_machine() -> None:
    with pytest.raises(
        InvalidSpec,
        match=r"--cuda auto needs a GPU.*there is no nvidia-smi.*--gpu H100 --driver 535",
    ):
        resolver.resolve(
            spec.combine({}, {"torch": "2.5", "cuda": "auto"}, name=""),
            HostGpus(why="there is no nvidia-smi on this machine"),
        )


def test_gpu_or_driver_implies_auto_cuda() -> None:
    explicit = resolve(torch="2.5", cuda="auto", gpu=["H100"], driver="535.183.01", source="wheels")
    assert resolve(torch="2.5", gpu=["H100"], driver="535.183.01", source="wheels") == explicit
    assert resolve(torch="2.8", driver="580", source="wheels").cuda == "12.9"
    of_file = spec.combine({"torch": "2.5", "cuda": "12.1"}, {"gpu": ["H100"]}, name="lab")
    assert of_file.cuda == "12.1"


def test_unknown_and_lost_gpus_of_this_machine_are_noted() -> None:
    request = spec.combine({}, {"torch": "2.8", "cuda": "auto", "source": "wheels"}, name="")
    alone = resolver.resolve(request, HostGpus(driver="580.95.05", gpus=("NVIDIA X900",)))
    assert alone.cuda == "12.9" and "NVIDIA X900" in alone.warnings[-1].reason
    machine = HostGpus(driver="580.95.05", gpus=("NVIDIA X900", "sm_70"), lost=2)
    both = resolver.resolve(request, machine)
    # An index that lacks the newest CUDA decides `auto` before the last resolution.
    (exact, *_) = resolver.with_each_cuda(request, machine)
    assert resolver.resolve(exact, machine).warnings == both.warnings
    assert [warning.what for warning in both.warnings[-2:]] == ["gpu", "gpu"]
    assert both.warnings[-1].reason.endswith("2 of this machine's GPUs: lost")
    assert resolver.resolve(alone.spec).warnings == alone.warnings[:-1]


def test_gpu_without_build_code_is_refused_with_both_facts() -> None:
    message = refusal(torch="2.3", cuda="12.1", gpu=["B200"])
    assert re.search(
        r"holds code for sm_50, .*sm_90, and B200 is sm_100 \(pytorch/builder@.*; NVIDIA, CUDA GPU Compute",
        message,
    )
    assert "Nearest:\n  `--torch 2.7.1 --cuda 12.8` (wheels)" in message
    assert resolve(torch="2.3", cuda="12.1", gpu=["H100", "RTX 4090", "8.0"]).source == "wheels"


def test_old_driver_is_refused_with_both_facts() -> None:
    message = refusal(torch="2.3", cuda="12.1", driver="470")
    assert (
        "CUDA 12.1 needs driver 525.60.13 or later, and the driver is 470 (NVIDIA CUDA Toolkit release notes"
        in message
    )
    assert "Nearest:\n  `--torch 2.3 --cuda 11.8` (pytorch)" in message


def test_drivers_are_known_for_x86_only() -> None:
    resolution = resolve(torch="2.11", cuda="13.0", platforms=["linux-aarch64"], driver="590.44.01")
    assert resolution.driver_floor is None
    assert "needs on linux-aarch64 is not known" in resolution.warnings[0].reason
    assert "the driver is 550.54.15" in refusal(
        torch="2.11", cuda="13.0", platforms=["linux-aarch64"], driver="550.54.15"
    )


def test_old_glibc_is_refused_and_newer_is_passed_to_the_solver() -> None:
    assert "needs glibc 2.28 or later, and 2.17 was requested" in refusal(
        torch="2.6", cuda="12.6", glibc="2.17", source="wheels"
    )
    assert (
        dict(resolve(torch="2.6", cuda="12.4", glibc="2.17").virtual_packages)["__glibc"] == "2.17"
    )
    assert (
        dict(resolve(torch="2.6", cuda="12.4", glibc="2.39").virtual_packages)["__glibc"] == "2.39"
    )


def test_unknown_facts_are_warnings() -> None:
    resolution = resolve(
        torch="2.1.1", cuda="12.1", source="pytorch", gpu=["H100"], glibc="2.17", driver="525"
    )
    assert [warning.what for warning in resolution.warnings][:4] == [
        "python",
        "gpu",
        "driver",
        "glibc",
    ]
    assert all("not known" in warning.reason for warning in resolution.warnings[:4])
    assert resolve(torch="2.1.1", cuda="12.1", source="pytorch").warnings[0].what == "python"


def test_ptx_is_a_warning_and_never_the_first_choice() -> None:
    resolution = resolve(torch="2.6", cuda="12.6", source="conda-forge", gpu=["B200"])
    assert {"gpu", "nccl-no-ptx"} <= {warning.what for warning in resolution.warnings}
    assert (
        resolve(torch="2.7", cuda="auto", gpu=["B200"], driver="575.51.03", source="wheels").cuda
        == "12.8"
    )


def test_aarch64_builds_match_the_table() -> None:
    resolution = resolve(torch="2.11", cuda="13.0", platforms=["linux-aarch64", "linux-64"])
    assert (resolution.platforms, resolution.needs_local_build) == (
        ("linux-64", "linux-aarch64"),
        False,
    )
    assert "torch==2.11.0" in requirements(resolution)
    aarch64_only = resolve(torch="2.8", cuda="12.9", platforms=["linux-aarch64"])
    assert (aarch64_only.source, aarch64_only.spec.name) == (
        "conda-forge",
        "torch2.8-cuda12.9-py311-aarch64",
    )
    message = refusal(torch="2.3", cuda="12.1", platforms=["linux-64", "linux-aarch64"])
    assert (
        "torch 2.3.1 for CUDA 12.1 from the wheels exists for linux-64 and not for linux-aarch64 ("
        in message
    )
    assert "Nearest:\n  `--torch 2.3 --cuda 12.1 --platform linux-64`" in message


def test_wheel_with_platform_dependent_name_is_not_for_both() -> None:
    message = refusal(
        torch="2.9", cpu=True, platforms=["linux-64", "linux-aarch64"], source="wheels"
    )
    assert (
        "is plain torch==2.9.1 on one of linux-64, linux-aarch64 and named by its build on another"
        in message
    )
    assert "`--torch 2.9 --cpu --source wheels --platform linux-64`" in message
    assert (
        "`--torch 2.9 --cpu --source conda-forge --platform linux-64 --platform linux-aarch64`"
        in message
    )
    assert "torch==2.9.1+cpu" in requirements(resolve(torch="2.9", cpu=True))
    assert "torch==2.9.1" in requirements(
        resolve(torch="2.9", cpu=True, platforms=["linux-aarch64"])
    )


@pytest.mark.parametrize(
    ("torch", "cuda", "architectures"),
    [
        ("2.6", "12.6", ()),
        ("2.7.0", "12.8", ()),
        ("2.8", "12.8", ()),
        ("2.9", "13.0", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")),
        ("2.10", "13.0", ()),
    ],
)
def test_cuda_wheels_for_aarch64_before_they_were_the_index_default(
    torch: str, cuda: str, architectures: tuple[str, ...]
) -> None:
    resolution = resolve(torch=torch, cuda=cuda, source="wheels", gpu=["GH200"])
    assert resolution.platforms == ("linux-aarch64",)
    tag = "cu" + cuda.replace(".", "")
    pins = requirements(resolution)
    assert f"torch=={resolution.torch}+{tag}" in pins
    # torchvision for aarch64 has no local version before 0.25 (pytorch/vision#9330).
    assert f"torchvision=={catalog.releases()[resolution.torch].companions[0].version}" in pins
    assert not any(pin.startswith("nvidia-nccl") for pin in pins)
    assert (resolution.nccl, resolution.cudnn) == (None, None)
    assert resolution.architectures == architectures


def test_gpus_with_an_arm_cpu_do_not_fit_another_platform() -> None:
    with pytest.raises(InvalidSpec, match=r"GH200 is on one module .* request platform linux-aarc"):
        resolve(torch="2.9", cuda="13.0", gpu=["GH200"], platforms=["linux-64"])
    with pytest.raises(InvalidSpec, match="GB10 is on one module with an Arm CPU"):
        resolve(torch="2.9", cuda="13.0", gpu=["H100", "GB10"])
    both = resolve(torch="2.9", cuda="13.0", gpu=["H100", "GH200"], platforms=list(PLATFORMS))
    assert both.platforms == PLATFORMS


def test_gpu_newer_than_every_suitable_toolkit() -> None:
    assert "sm_70, for which CUDA compiles up to 12.9 (" in refusal(
        torch="2.15", cuda="13.0", gpu=["V100"]
    )


@pytest.mark.parametrize("source", sources.names())
def test_default_packages_are_left_out(source: str) -> None:
    """Under the name that whoever installs them knows."""
    options = {"torch": "2.3", "cuda": "11.8" if source == "conda-forge" else "12.1"}
    xxhash = "xxhash>=2" if source == "wheels" else "python-xxhash>=2"
    for key, package in (("jupyter", "ipykernel"), ("fast_checkpoints", xxhash)):
        along, left_out = (resolve(**options, source=source, **{key: on}) for on in (True, False))
        assert set(requirements(along)) - set(requirements(left_out)) == {package}
    own = resolve(**options, source=source, jupyter=False, conda=["ipykernel"])
    assert "ipykernel" in requirements(own)


def test_infiniband_adds_the_library_nccl_loads() -> None:
    assert "rdma-core" in requirements(resolve(torch="2.3", cuda="12.1", infiniband=True))
    assert "rdma-core" not in requirements(resolve(torch="2.3", cuda="12.1"))


@pytest.mark.parametrize(
    "options,expected_message",
    [
        ({"pip": ["nvidia-nccl-cu11"]}, r"`nvidia-nccl-cu11`: the NVIDIA wheels .*-v shows"),
        ({"pip": ["nvidia-cudnn-cu13>=9"]}, r"`nvidia-cudnn-cu13`: .*different CUDA versions"),
        ({"pip": ["NVIDIA_NCCL.cu12==2.21.5"]}, r"excludes `nvidia-nccl-cu12==2.20.5`: the NCCL that this torch was built for"),
        ({"pip": ["torchvision<0.18"]}, r"excludes `torchvision==0.18.1`.*--no-companions"),
        ({"pip": ["torch==2.4"]}, r"excludes `torch==2.3.1`"),
        ({"pip": ["torch"], "source": "pytorch"}, r"`torch` would replace torch 2.3.1 for CUDA 12.1 from the pytorch channel"),
        ({"pip": ["nvidia-nccl-cu11", "nvidia-nccl-cu12"], "source": "pytorch"}, r"`nvidia-nccl-cu11` is of CUDA 11, .*write the same files"),
        ({"conda": ["torchelastic"]}, r"`torchelastic`: .*torchrun"),
        ({"conda": ["conda-forge::pytorch=2.4"]}, r"`pytorch`: .*two builds"),
        ({"conda": ["cudatoolkit=11.8"], "source": "pytorch"}, r"`cudatoolkit`: .*second CUDA"),
    ],
)  # fmt: skip
def test_packages_that_conflict_with_torch_are_refused(
    options: dict[str, Any], expected_message: str
) -> None:
    with pytest.raises(InvalidSpec, match=expected_message) as error:
        resolve(torch="2.3", cuda="12.1", **options)
    assert not re.search(r"#\d{4}|@[0-9a-f]{40}", str(error.value))  # sources are for -v


def test_all_conflicting_packages_are_named() -> None:
    with pytest.raises(InvalidSpec, match=r"`torchelastic`.*\n`torch==2.4`"):
        resolve(torch="2.3", cuda="12.1", conda=["torchelastic"], pip=["torch==2.4"])


def test_a_gpu_package_with_a_cpu_build_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="`nvidia-nccl-cu12` is of CUDA 12"):
        resolve(torch="2.3", cpu=True, pip=["nvidia-nccl-cu12"])


def test_compatible_packages_are_added() -> None:
    resolution = resolve(
        torch="2.3",
        cuda="12.1",
        pip=["torchvision>=0.18", "nvidia-nccl-cu12~=2.20.5", "einops"],
        conda=["ffmpeg"],
    )
    assert {"torchvision>=0.18", "einops", "ffmpeg"} <= set(requirements(resolution))


def test_dasks_distributed_is_a_warning() -> None:
    resolution = resolve(torch="2.3", cuda="12.1", conda=["distributed"])
    message = next(warning for warning in resolution.warnings if warning.what == "distributed")
    assert "Dask" in message.reason and message.source and "Remove it" in message.value


@pytest.mark.parametrize("source", sources.names())
def test_cpu_builds_from_every_source(source: str) -> None:
    resolution = resolve(torch="2.3", cpu=True, source=source)
    pins = {
        "wheels": "torch==2.3.1+cpu",
        "pytorch": "pytorch::pytorch=2.3.1=py3.11_cpu*",
        "conda-forge": "pytorch=2.3.1=cpu*",
    }
    assert pins[source] in requirements(resolution)
    assert (
        resolution.cuda,
        resolution.nccl,
        resolution.driver_floor,
        "__cuda" in dict(resolution.virtual_packages),
    ) == (None, None, None, False)
    assert ("pytorch::cpuonly" in requirements(resolution)) == (source == "pytorch")


def test_channels_by_release() -> None:
    assert resolve(torch="1.12", cuda="11.6", source="pytorch").channels == (
        "pytorch",
        "conda-forge",
    )
    assert resolve(torch="1.12", cuda="11.3", source="pytorch").channels == (
        "pytorch",
        "nvidia",
        "conda-forge",
    )  # its cudatoolkit is there
    assert resolve(torch="1.13", cuda="11.7", source="pytorch").channels == (
        "pytorch",
        "nvidia",
        "conda-forge",
    )
    assert resolve(
        torch="2.3", cpu=True, source="pytorch", channels=["lab", "conda-forge"]
    ).channels == ("pytorch", "lab", "conda-forge")
    assert {"pytorch=1.13.1=cuda112*", "cudatoolkit=11.2"} <= set(
        requirements(resolve(torch="1.13", cuda="11.2"))
    )
    assert "cudatoolkit=11.3" in requirements(resolve(torch="1.12", cuda="11.3", source="pytorch"))


def test_wrong_channel_order_is_corrected_with_a_warning() -> None:
    resolution = resolve(
        torch="2.3", cuda="12.1", source="pytorch", channels=["conda-forge", "pytorch"]
    )
    assert "channel-order" in [warning.what for warning in resolution.warnings]
    assert resolution.channels == ("pytorch", "nvidia", "conda-forge")


def test_markers_are_decided_for_python_and_platforms() -> None:
    """A requirement that its marker leaves out excludes nothing, and environment.yml has no markers unless platforms differ."""
    texts = (
        "tomli; python_version < '3.11'",
        "six; sys_platform == 'linux'",
        "torch==1.0; sys_platform == 'win32'",
        "a @ git+https://g.example/a.git@v1#egg=a[x] ; python_version > '3'",
        "triton-cpu; platform_machine == 'aarch64'",
    )
    options = {"torch": "2.13.0", "cuda": "13.0", "python": "3.12", "pip": texts}
    platforms = {"platforms": ("linux-64", "linux-aarch64")}

    def requested(**more: Any) -> list[str]:
        resolution = resolver.resolve(spec.combine({}, {**options, **more}, name="lab"))
        return [pin.requirement for pin in resolution.pins if pin.source == "spec.yml"]

    assert requested() == ["six", "a @ git+https://g.example/a.git@v1"]
    assert requested(**platforms)[2:] == ["triton-cpu; platform_machine == 'aarch64'"]
