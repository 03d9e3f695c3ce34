"""Is the environment what was promised, and can it work on this GPU? Pure: facts and options in, findings out.

What surrounds the environment is surroundings.py's, how the ranks compare is drift.py's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..options import Options

CPU_ONLY = "none"
# What a failed import of torch says, and what to do about it. Each was reported for torch; the first that fits is taken.
HINTS = (
    (
        r"No module named 'torch'",
        "torch is not installed for this interpreter: use the environment's own Python",
    ),
    (
        r"no attribute '__version__'",
        "torch is installed in part, or a folder named torch comes before it: install the environment again",
    ),
    (
        r"undefined symbol: nccl",
        "an NCCL older than torch needs came first: see LD_LIBRARY_PATH, and for a second nvidia-nccl wheel",
    ),
    (r"undefined symbol: iJIT_", "this torch needs mkl below 2024.1 (mkl<2024.1)"),
    (
        r"GLIBCXX_|CXXABI_",
        "an old libstdc++ came first: unset LD_LIBRARY_PATH and LD_PRELOAD, or install a newer libstdcxx-ng",
    ),
    (r"version `GLIBC_", "this system is older than torch needs: use a newer system or the image"),
    (r"numpy|_ARRAY_API", "this torch needs another NumPy: before torch 2.3 it is numpy<2"),
    (r"cannot open shared object", "a library is missing: install the locked environment again"),
    (
        r"failed to map segment",
        "the environment lies on a file system that is mounted noexec, or memory is limited (ulimit -v)",
    ),
    (
        r"ended the process|did not end",
        "see rank*.log; run `python -X faulthandler -c 'import torch'` in the environment",
    ),
)


def broken(error: str) -> Finding:
    """torch that is missing or cannot be imported, with the known cause where there is one."""
    advice = next((advice for pattern, advice in HINTS if re.search(pattern, error)), "")
    return Finding("torch-broken", error, advice=advice)


def differences(
    facts: Mapping[str, Any], options: Options, device: int | None = None
) -> list[Finding]:
    """Each way in which this environment is not the promised one, or cannot use the GPU with this index."""
    torch = facts["torch"]
    found = [
        _release("torch", options.expect_torch, torch["version"]),
        _cuda(options, torch),
        _release("NCCL", options.expect_nccl, nccl_version(torch)),
        _older_nccl(torch["nccl"]),
        _lost_gpu(facts),
        _no_gpu(options, facts),
        _unsupported(torch, device),
    ]
    return [finding for finding in found if finding is not None]


def nccl_version(torch: Mapping[str, Any]) -> str | None:
    """The loaded one where it can be asked, else the one torch was compiled with."""
    nccl: Mapping[str, str | None] = torch["nccl"]
    return nccl["loaded"] or nccl["compiled"]


def is_rehearsal(facts: Mapping[str, Any], options: Options) -> bool:
    """A CUDA environment, asked for or built, that runs on CPU here."""
    wanted = facts["torch"]["cuda"] is not None or options.expect_cuda not in (None, CPU_ONLY)
    return wanted and not facts["torch"]["cuda_available"]


def runs_on(architecture: str, built: Sequence[str]) -> bool | None:
    """Whether a build for these architectures has code for a GPU like sm_86; None where one of the names is not understood.

    A kernel for 8.0 runs on every 8.x that is not older, PTX for 8.0 on everything newer. A letter behind the number binds
    the code: `a` to that GPU alone, `f` to its family.
    """
    gpu = _parse_architecture(architecture)
    codes = [_parse_architecture(name) for name in built]
    if gpu is None or not codes:
        return None
    if any(code is not None and _serves(code, gpu) for code in codes):
        return True
    return None if None in codes else False


def _parse_architecture(name: str) -> tuple[str, int, int, str] | None:
    # sm_86, compute_90, sm_100a: the last digit is the minor number. ROCm's names (gfx90a) are not ours.
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
    return (found[1], int(found[2]), int(found[3]), found[4]) if found else None


def _serves(code: tuple[str, int, int, str], gpu: tuple[str, int, int, str]) -> bool:
    kind, major, minor, bound = code
    if bound == "a":
        return (major, minor) == gpu[1:3]
    if kind == "sm" or bound == "f":
        return major == gpu[1] and minor <= gpu[2]
    return (major, minor) <= gpu[1:3]


def _release(what: str, expected: str | None, found: str | None) -> Finding | None:
    if expected is None or found == expected:
        return None
    # 2.3.1 promises the release, 2.3.1+cu121 also the build.
    if found is not None and "+" not in expected and found.split("+")[0] == expected:
        return None
    return Finding(
        "environment-unlike", f"{what} is {found or 'absent'}, but {expected} was promised"
    )


def _cuda(options: Options, torch: Mapping[str, Any]) -> Finding | None:
    expected, found = options.expect_cuda, torch["cuda"]
    if found is None and expected not in (None, CPU_ONLY):
        return Finding(
            "cpu-build",
            f"torch {torch['version']} is a CPU build, but CUDA {expected} was promised",
        )
    if expected is None or (found or CPU_ONLY) == expected:
        return None
    promised = "a CPU build" if expected == CPU_ONLY else f"CUDA {expected}"
    return Finding(
        "environment-unlike", f"torch is built for CUDA {found}, but {promised} was promised"
    )


def _older_nccl(nccl: Mapping[str, str | None]) -> Finding | None:
    loaded, compiled = nccl["loaded"], nccl["compiled"]
    if not loaded or not compiled or _numbers(loaded) >= _numbers(compiled):
        return None
    return Finding(
        "nccl-older",
        f"NCCL {loaded} is loaded from {nccl['file']}, but torch was compiled with {compiled}",
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _lost_gpu(facts: Mapping[str, Any]) -> Finding | None:
    """The kernel shows a GPU and a CUDA build does not see it: never a quiet rehearsal."""
    torch = facts["torch"]
    hidden = facts["environment"].get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    if torch["cuda"] is None or torch["cuda_available"] or not facts["device_nodes"] or hidden:
        return None
    driver = facts["driver"] or "of unknown version"
    where = f"there is a GPU ({facts['device_nodes'][0]}, driver {driver})"
    return Finding("gpu-lost", f"{where}, but torch for CUDA {torch['cuda']} sees none")


def _no_gpu(options: Options, facts: Mapping[str, Any]) -> Finding | None:
    torch = facts["torch"]
    if not options.require_gpu or torch["cuda_available"] or _lost_gpu(facts):
        return None
    if torch["cuda"] is None:
        return (
            None
            if _cuda(options, torch)
            else Finding(
                "cpu-build", f"a GPU is required, but torch {torch['version']} is a CPU build"
            )
        )
    return Finding(
        "gpu-missing", f"a GPU is required, but torch for CUDA {torch['cuda']} sees none"
    )


def _unsupported(torch: Mapping[str, Any], index: int | None) -> Finding | None:
    gpu = torch["devices"][index] if index is not None and index < len(torch["devices"]) else None
    if gpu is None or runs_on(gpu["architecture"], torch["arch_list"]) is not False:
        return None
    held = ", ".join(torch["arch_list"])
    what = f"{gpu['name']} is {gpu['architecture']}, and torch {torch['version']} holds neither a kernel nor PTX for it"
    return Finding("arch-unsupported", f"{what} (it has {held})")
