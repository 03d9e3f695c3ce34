"""How the ranks compare: one environment everywhere, a GPU for each, and room for all in what they share. Pure.

Every rank says one row of plain values; a rank is named for what it has in contrast to most. Without a majority all are: who is right?
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...comm.ranks import name_ranks
from ..outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What all ranks must have in common: an environment that differs between hosts is two environments.
SHARED = ("python", "torch", "cuda", "nccl", "driver", "lock_hash", "backend")
MIB = 1024**2
# NVIDIA asks for 1 GiB in a container for the eight GPUs of a host; Docker gives 64 MiB, which ends in "Bus error".
SHM_LEAST = 256 * MIB
SHM_PER_RANK = 64 * MIB
SHM_ENOUGH = 1024 * MIB


def findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """All that only shows between ranks; rows are in rank order."""
    return [*drift(rows), *shared_gpus(rows), *mixed_gpus(rows), *shared_memory(rows)]


def drift(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    return [finding for name in SHARED for finding in _differing("environment-drift", name, rows)]


def mixed_gpus(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    return _differing("gpu-mixed", "gpu_name", [row for row in rows if row["gpu_name"]])


def shared_gpus(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """NCCL refuses two ranks on one GPU. Over Gloo several may share one, which is then what was asked for."""
    owners: dict[str, list[int]] = {}
    for row in rows:
        if row["gpu"] is not None and row["backend"] == "nccl":
            owners.setdefault(row["gpu"], []).append(row["rank"])
    shared = {uuid: ranks for uuid, ranks in owners.items() if len(ranks) > 1}
    return [
        Finding("gpu-shared", f"{len(ranks)} ranks are on one GPU ({uuid})", tuple(ranks))
        for uuid, ranks in shared.items()
    ]


def shared_memory(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Room in each /dev/shm for the ranks that use it: two containers of one host have one each."""
    users: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        users.setdefault((row["host"], row["shm_device"]), []).append(row)
    found = []
    for together in users.values():
        said = _shared_memory(together[0], len(together))
        found += [Finding(*said, tuple(row["rank"] for row in together))] if said else []
    return found


def shm_needed(ranks: int) -> int:
    return min(SHM_ENOUGH, max(SHM_LEAST, SHM_PER_RANK * ranks))


def _shared_memory(row: Mapping[str, Any], ranks: int) -> tuple[str, str] | None:
    needed, size, free = shm_needed(ranks), row["shm_bytes"], row["shm_free_bytes"]
    asked = f"{needed // MIB} MiB are needed for {ranks} rank{'s' if ranks > 1 else ''}"
    if size is None:
        return "shm-small", f"there is no /dev/shm; {asked}"
    if size < needed:
        return "shm-small", f"/dev/shm holds {size // MIB} MiB; {asked}"
    if free < needed:
        return "shm-full", f"/dev/shm has {free // MIB} of {size // MIB} MiB left; {asked}"
    return None


def _differing(id: str, name: str, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """One finding for each value that is not the one most ranks have; one of all ranks where no value has a majority."""
    holders: dict[Any, list[int]] = {}
    for row in rows:
        holders.setdefault(row[name], []).append(row["rank"])
    if len(holders) < 2:
        return []
    usual = max(holders, key=lambda value: len(holders[value]))
    if len(holders[usual]) * 2 <= len(rows):
        said = ", ".join(
            f"{_in_words(value)} on {name_ranks(ranks)}" for value, ranks in holders.items()
        )
        return [Finding(id, f"{name} is {said}", tuple(row["rank"] for row in rows))]
    known = f"{_in_words(usual)} on {name_ranks(holders[usual])}"
    others = {value: ranks for value, ranks in holders.items() if value != usual}
    return [
        Finding(
            id, f"{name} is {_in_words(value)} on {name_ranks(ranks)}, but {known}", tuple(ranks)
        )
        for value, ranks in others.items()
    ]


def _in_words(value: Any) -> str:
    return "absent" if value is None else str(value)
