"""Is the environment what was expected, and can it use this GPU? Pure: facts and
expectations in, findings out.

surroundings.py judges what is around the environment; the smoke test compares the ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..report.findings import Finding
from .releases import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..facts.model import EnvironmentFacts, NcclFacts, TorchFacts

CPU_ONLY = "none"
# Patterns of errors when torch is imported, and the advice for each. All were reported by users of
# torch; the first match counts.
HINTS = (
    (
        r"No module named 'torch'",
        "torch is not installed for this interpreter: use the environment's own Python",
    ),
    (
        r"no attribute '__version__'",
        "torch is only partly installed, or a folder named torch comes before it: install the "
        "environment again",
    ),
    (
        r"undefined symbol: nccl",
        "an NCCL older than torch needs was loaded first: check LD_LIBRARY_PATH, and whether a "
        "second nvidia-nccl wheel is installed",
    ),
    (r"undefined symbol: iJIT_", "this torch needs mkl below 2024.1 (mkl<2024.1)"),
    (
        r"GLIBCXX_|CXXABI_",
        "an old libstdc++ was loaded first: unset LD_LIBRARY_PATH and LD_PRELOAD, or install a "
        "newer libstdcxx-ng",
    ),
    (r"version `GLIBC_", "this system is older than torch needs: use a newer system or the image"),
    (r"numpy|_ARRAY_API", "this torch needs another NumPy: before torch 2.3, numpy<2"),
    (r"cannot open shared object", "a library is missing: install the locked environment again"),
    (
        r"failed to map segment",
        "the environment is on a file system that is mounted noexec, or memory is limited "
        "(ulimit -v)",
    ),
    (
        r"ended the process|did not end",
        "see rank*.log; run `python -X faulthandler -c 'import torch'` in the environment",
    ),
)


@dataclass(frozen=True)
class Expectation:
    """What a user expects of the environment; None: anything. cuda: a version, or `none`."""

    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    requires_gpu: bool = False


@dataclass(frozen=True)
class GpuCode:
    """sm_86, compute_90, sm_100a: what a build contains for a GPU, or what a GPU is."""

    kind: str
    major: int
    minor: int
    suffix: str


def broken(error: str) -> Finding:
    """The finding that torch is missing or cannot be imported, with advice if the cause is
    known."""
    for pattern, advice in HINTS:
        if re.search(pattern, error):
            return Finding("torch-broken", error, advice=advice)
    return Finding("torch-broken", error)


def differences(
    facts: EnvironmentFacts, expected: Expectation, device: int | None = None
) -> list[Finding]:
    """How this environment differs from the expected one, and why it cannot use the GPU with this
    index. Its torch must be usable."""
    torch = facts["torch"]
    assert torch is not None
    findings = [
        _release_finding("torch", expected.torch, torch["version"]),
        _cuda_finding(expected, torch),
        _release_finding("NCCL", expected.nccl, nccl_version(torch)),
        _old_nccl_finding(torch["nccl"]),
        _gpu_finding(expected, facts, torch),
        _architecture_finding(torch, device),
    ]
    return [finding for finding in findings if finding is not None]


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
    gpu = _parse_architecture(architecture)
    codes = [_parse_architecture(name) for name in built]
    if gpu is None or not codes:
        return None
    for code in codes:
        if code is not None and _can_run(code, gpu):
            return True
    return None if None in codes else False


def _parse_architecture(name: str) -> GpuCode | None:
    # The last digit is the minor number. ROCm's names (gfx90a) are unknown here.
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
    return GpuCode(match[1], int(match[2]), int(match[3]), match[4]) if match else None


def _can_run(code: GpuCode, gpu: GpuCode) -> bool:
    if code.suffix == "a":
        return (code.major, code.minor) == (gpu.major, gpu.minor)
    if code.kind == "sm" or code.suffix == "f":
        return code.major == gpu.major and code.minor <= gpu.minor
    return (code.major, code.minor) <= (gpu.major, gpu.minor)


def _release_finding(name: str, expected: str | None, actual: str | None) -> Finding | None:
    if expected is None or actual == expected:
        return None
    # 2.3.1 names only the release, 2.3.1+cu121 also the build.
    if actual is not None and "+" not in expected and actual.split("+")[0] == expected:
        return None
    message = f"{name} is {actual or 'absent'}, but {expected} was expected"
    return Finding("environment-unlike", message)


def _cuda_finding(expected: Expectation, torch: TorchFacts) -> Finding | None:
    if torch["cuda"] is None and expected.cuda not in (None, CPU_ONLY):
        message = f"torch {torch['version']} is a CPU build, but CUDA {expected.cuda} was expected"
        return Finding("cpu-build", message)
    if expected.cuda in (None, torch["cuda"] or CPU_ONLY):
        return None
    build = "a CPU build" if expected.cuda == CPU_ONLY else f"CUDA {expected.cuda}"
    message = f"torch is built for CUDA {torch['cuda']}, but {build} was expected"
    return Finding("environment-unlike", message)


def _old_nccl_finding(nccl: NcclFacts) -> Finding | None:
    loaded, compiled = nccl["loaded"], nccl["compiled"]
    if not loaded or not compiled or numbers(loaded) >= numbers(compiled):
        return None
    message = f"NCCL {loaded} is loaded from {nccl['file']}, but torch was compiled with {compiled}"
    return Finding("nccl-older", message)


def _gpu_finding(
    expected: Expectation, facts: EnvironmentFacts, torch: TorchFacts
) -> Finding | None:
    """A missing GPU must not become a silent rehearsal if the kernel lists one, or one is
    required."""
    if torch["cuda_available"]:
        return None
    is_hidden = facts["environment"].get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    if torch["cuda"] is not None and facts["device_nodes"] and not is_hidden:
        driver = facts["driver"] or "of unknown version"
        return Finding(
            "gpu-lost",
            f"this host has a GPU ({facts['device_nodes'][0]}, driver {driver}), "
            f"but torch for CUDA {torch['cuda']} sees none",
        )
    if not expected.requires_gpu:
        return None
    if torch["cuda"] is not None:
        message = f"a GPU is required, but torch for CUDA {torch['cuda']} sees none"
        return Finding("gpu-missing", message)
    if _cuda_finding(expected, torch):
        return None
    return Finding("cpu-build", f"a GPU is required, but torch {torch['version']} is a CPU build")


def _architecture_finding(torch: TorchFacts, index: int | None) -> Finding | None:
    if index is None or index >= len(torch["devices"]):
        return None
    gpu = torch["devices"][index]
    if runs_on(gpu["architecture"], torch["arch_list"]) is not False:
        return None
    return Finding(
        "arch-unsupported",
        f"{gpu['name']} is {gpu['architecture']}, and torch {torch['version']} has neither a "
        f"kernel nor PTX for it (it has {', '.join(torch['arch_list'])})",
    )
