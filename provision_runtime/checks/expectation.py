"""Is the environment what was expected, and can it use this GPU? Pure: facts and
expectations in, findings out.

surroundings.py judges what is around the environment; the smoke test compares the ranks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..dataclass import frozen
from ..report.findings import TORCH_HINTS, Finding
from .releases import numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..facts.model import EnvironmentFacts, TorchFacts

CPU_ONLY = "none"


@frozen
class Expectation:
    """What a user expects of the environment; None: anything. cuda: a version, or `none`."""

    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    requires_gpu: bool = False


# What a build contains for a GPU, or what a GPU is: sm_86, compute_90, sm_100a. The last digit is the
# minor number. ROCm's names (gfx90a) are unknown here.
_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def broken(error: str) -> Finding:
    """The finding that torch is missing or cannot be imported, with advice if the cause is
    known."""
    advice = next(
        (advice for pattern, advice in TORCH_HINTS.items() if re.search(pattern, error)), ""
    )
    return Finding("torch-broken", error, advice=advice)


def differences(
    facts: EnvironmentFacts, expected: Expectation, device: int | None = None
) -> Iterator[Finding]:
    """How this environment differs from the expected one, and why it cannot use the GPU with this
    index. Its torch must be usable."""
    torch = facts["torch"]
    assert torch is not None
    cuda, build = torch["cuda"], f"torch {torch['version']}"
    yield from _other_release("torch", expected.torch, torch["version"])
    is_cpu_build = cuda is None and expected.cuda not in (None, CPU_ONLY)
    if is_cpu_build:
        yield Finding("cpu-build", f"{build} is a CPU build, but CUDA {expected.cuda} was expected")
    else:
        yield from _other_release("torch's CUDA", expected.cuda, cuda or CPU_ONLY)
    yield from _other_release("NCCL", expected.nccl, nccl_version(torch))
    loaded, compiled, file = (torch["nccl"][key] for key in ("loaded", "compiled", "file"))
    if loaded and compiled and numbers(loaded) < numbers(compiled):
        yield Finding(
            "nccl-older",
            f"NCCL {loaded} is loaded from {file}, but torch was compiled with {compiled}",
        )
    # A missing GPU must not become a silent rehearsal if the kernel lists one, or one is required.
    is_hidden = facts["environment"].get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    needs_gpu = expected.requires_gpu and not torch["cuda_available"]
    if cuda and not torch["cuda_available"] and facts["device_nodes"] and not is_hidden:
        gpu = f"{facts['device_nodes'][0]}, driver {facts['driver'] or 'of unknown version'}"
        yield Finding(
            "gpu-lost", f"this host has a GPU ({gpu}), but torch for CUDA {cuda} sees none"
        )
    elif needs_gpu and cuda:
        yield Finding("gpu-missing", f"a GPU is required, but torch for CUDA {cuda} sees none")
    elif needs_gpu and not is_cpu_build:
        yield Finding("cpu-build", f"a GPU is required, but {build} is a CPU build")
    for row in torch["devices"]:
        architecture = row["architecture"]
        if row["index"] == device and runs_on(architecture, torch["arch_list"]) is False:
            codes = ", ".join(torch["arch_list"])
            problem = f"{build} has neither a kernel nor PTX for it (it has {codes})"
            yield Finding("arch-unsupported", f"{row['name']} is {architecture}, and {problem}")


def nccl_version(torch: TorchFacts) -> str | None:
    """The loaded one if it is known, else the one that torch was compiled with."""
    return torch["nccl"]["loaded"] or torch["nccl"]["compiled"]


def is_rehearsal(torch: TorchFacts, expected_cuda: str | None) -> bool:
    """Whether a CUDA environment, requested or built, runs on the CPU here."""
    is_cuda = torch["cuda"] is not None or expected_cuda not in (None, CPU_ONLY)
    return is_cuda and not torch["cuda_available"]


def runs_on(architecture: str, built: Sequence[str]) -> bool | None:
    """Whether a build for these architectures has code for a GPU such as sm_86; None if one of the
    names is unknown.

    A kernel for 8.0 runs on every later 8.x, PTX for 8.0 on everything newer. A suffix restricts
    the code: `a` to exactly that GPU, `f` to its family.
    """
    gpu = _CODE.fullmatch(architecture)
    codes = [_CODE.fullmatch(name) for name in built]
    if gpu is None or not codes:
        return None
    if any(code and _can_run(code, gpu) for code in codes):
        return True
    return None if None in codes else False


def _can_run(code: re.Match[str], gpu: re.Match[str]) -> bool:
    kind, suffix = code[1], code[4]
    code_release, gpu_release = (int(code[2]), int(code[3])), (int(gpu[2]), int(gpu[3]))
    if suffix == "a":
        return code_release == gpu_release
    is_of_family = code_release[0] == gpu_release[0]
    return code_release <= gpu_release and (is_of_family or (kind == "compute" and not suffix))


def _other_release(name: str, expected: str | None, actual: str | None) -> Iterator[Finding]:
    # 2.3.1 names only the release, 2.3.1+cu121 also the build.
    release = actual.split("+")[0] if actual and expected and "+" not in expected else actual
    if expected is not None and release != expected:
        yield Finding(
            "environment-unlike", f"{name} is {actual or 'absent'}, but {expected} was expected"
        )
