"""How the ranks compare: the same environment everywhere, a GPU for each rank, and enough shared
memory. Pure.

Every rank reports one row of plain values; a rank is named for a value that most ranks do not have.
Without a majority all ranks are named, since any may be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...comm.ranks import name_ranks
from ...report.text import format_count
from ..outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What must be the same on all ranks: otherwise they have different environments.
COMPARED = ("python", "torch", "cuda", "nccl", "driver", "lock_hash", "backend")
MIB = 1024**2
# NVIDIA recommends 1 GiB in a container for the eight GPUs of a host; Docker gives 64 MiB, which
# ends in "Bus error".
SHM_LEAST = 256 * MIB
SHM_PER_RANK = 64 * MIB
SHM_ENOUGH = 1024 * MIB


def findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What shows only between ranks; rows are in rank order."""
    result = []
    for name in COMPARED:
        result += _differing_values("environment-drift", name, rows)
    result += shared_gpus(rows)
    result += mixed_gpus(rows)
    result += shared_memory(rows)
    return result


def mixed_gpus(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    return _differing_values("gpu-mixed", "gpu_name", [row for row in rows if row["gpu_name"]])


def shared_gpus(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """NCCL refuses two ranks on one GPU. With Gloo several may share one, which is then
    intended."""
    ranks_by_gpu: dict[str, list[int]] = {}
    for row in rows:
        if row["gpu"] is not None and row["backend"] == "nccl":
            ranks_by_gpu.setdefault(row["gpu"], []).append(row["rank"])
    result = []
    for uuid, ranks in ranks_by_gpu.items():
        if len(ranks) > 1:
            message = f"{len(ranks)} ranks are on one GPU ({uuid})"
            result.append(Finding("gpu-shared", message, tuple(ranks)))
    return result


def shared_memory(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Is each /dev/shm large enough for the ranks that use it? Two containers of one host have one
    each."""
    users: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        users.setdefault((row["host"], row["shm_device"]), []).append(row)
    result = []
    for sharing_rows in users.values():
        ranks = tuple(row["rank"] for row in sharing_rows)
        problem = _shared_memory_problem(sharing_rows[0], len(ranks))
        if problem:
            finding_id, message = problem
            result.append(Finding(finding_id, message, ranks))
    return result


def shm_needed(ranks: int) -> int:
    return min(SHM_ENOUGH, max(SHM_LEAST, SHM_PER_RANK * ranks))


def _shared_memory_problem(row: Mapping[str, Any], ranks: int) -> tuple[str, str] | None:
    needed, size, free = shm_needed(ranks), row["shm_bytes"], row["shm_free_bytes"]
    need = f"{needed // MIB} MiB are needed for {format_count(ranks, 'rank')}"
    if size is None:
        return "shm-small", f"there is no /dev/shm; {need}"
    if size < needed:
        return "shm-small", f"/dev/shm has {size // MIB} MiB; {need}"
    if free < needed:
        return "shm-full", f"/dev/shm has {free // MIB} of {size // MIB} MiB left; {need}"
    return None


def _differing_values(
    finding_id: str, name: str, rows: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """One finding for each value that differs from the majority's; one about all ranks if there is
    no majority."""
    ranks_by_value: dict[Any, list[int]] = {}
    for row in rows:
        ranks_by_value.setdefault(row[name], []).append(row["rank"])
    if len(ranks_by_value) < 2:
        return []
    texts = {}
    for value, ranks in ranks_by_value.items():
        texts[value] = f"{'absent' if value is None else value} on {name_ranks(ranks)}"
    usual = max(ranks_by_value, key=lambda value: len(ranks_by_value[value]))
    if len(ranks_by_value[usual]) * 2 <= len(rows):
        message = f"{name} is {', '.join(texts.values())}"
        return [Finding(finding_id, message, tuple(row["rank"] for row in rows))]
    result = []
    for value, ranks in ranks_by_value.items():
        if value != usual:
            message = f"{name} is {texts[value]}, but {texts[usual]}"
            result.append(Finding(finding_id, message, tuple(ranks)))
    return result
