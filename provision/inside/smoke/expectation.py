"""Is the environment what the lock promised? Pure: facts and options in, differences in words out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .options import Options

CPU_ONLY = "none"
# What all ranks must have in common: an environment that differs between hosts is two environments.
SHARED = ("python", "torch", "cuda", "nccl", "lock_hash", "backend")


def differences(facts: Mapping[str, Any], options: Options) -> list[str]:
    """Each way in which this environment is not the promised one."""
    torch = facts["torch"]
    found = [
        _release("torch", options.expect_torch, torch["version"]),
        _cuda(options.expect_cuda, torch["cuda"]),
        _release("NCCL", options.expect_nccl, nccl_version(torch)),
        _lost_gpu(facts),
        _no_gpu(options, torch),
    ]
    return [difference for difference in found if difference is not None]


def nccl_version(torch: Mapping[str, Any]) -> str | None:
    """The loaded one where it can be asked, else the one torch was compiled with."""
    nccl: Mapping[str, str | None] = torch["nccl"]
    return nccl["loaded"] or nccl["compiled"]


def is_rehearsal(facts: Mapping[str, Any], options: Options) -> bool:
    """A CUDA environment, asked for or built, that runs on CPU here."""
    wanted = facts["torch"]["cuda"] is not None or options.expect_cuda not in (None, CPU_ONLY)
    return wanted and not facts["torch"]["cuda_available"]


def drift(summaries: list[dict[str, Any]]) -> list[str]:
    """In which shared facts ranks differ from rank 0."""
    found = []
    for name in SHARED:
        first = summaries[0][name]
        other = next((rank for rank, summary in enumerate(summaries) if summary[name] != first), None)
        if other is not None:
            found.append(f"{name} is {first} on rank 0 and {summaries[other][name]} on rank {other}")
    return found


def shared_gpus(summaries: list[dict[str, Any]]) -> list[str]:
    """Ranks that were put on one GPU."""
    owners: dict[str, int] = {}
    found = []
    for rank, summary in enumerate(summaries):
        uuid = summary["gpu"]
        if uuid in owners:
            found.append(f"ranks {owners[uuid]} and {rank} are on one GPU ({uuid})")
        elif uuid is not None:
            owners[uuid] = rank
    return found


def _release(what: str, expected: str | None, found: str | None) -> str | None:
    if expected is None or found == expected:
        return None
    # 2.3.1 promises the release, 2.3.1+cu121 also the build.
    if found is not None and "+" not in expected and found.split("+")[0] == expected:
        return None
    return f"{what} is {found or 'absent'}, but {expected} was promised"


def _cuda(expected: str | None, found: str | None) -> str | None:
    if expected is None or (found or CPU_ONLY) == expected:
        return None
    built = f"built for CUDA {found}" if found else "a CPU build"
    promised = "a CPU build" if expected == CPU_ONLY else f"CUDA {expected}"
    return f"torch is {built}, but {promised} was promised"


def _lost_gpu(facts: Mapping[str, Any]) -> str | None:
    """The kernel shows a GPU and a CUDA build does not see it: never a quiet rehearsal."""
    torch = facts["torch"]
    hidden = facts["environment"].get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    if torch["cuda"] is None or torch["cuda_available"] or not facts["device_nodes"] or hidden:
        return None
    driver = facts["driver"] or "of unknown version"
    return f"there is a GPU ({facts['device_nodes'][0]}, driver {driver}), but torch for CUDA {torch['cuda']} sees none"


def _no_gpu(options: Options, torch: Mapping[str, Any]) -> str | None:
    if not options.require_gpu or torch["cuda_available"]:
        return None
    return "a GPU is required, but torch sees none"
