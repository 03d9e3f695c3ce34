"""How many ranks share how many CPU cores: affinity and control groups allow less than there is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..facts import limits

if TYPE_CHECKING:
    from collections.abc import Sequence


def own_cpus(host: str) -> dict[str, Any]:
    """This rank's host, the cores that it may run on (a mask), and how many of them at a time."""
    mask = 0
    for cpu in os.sched_getaffinity(0):
        mask |= 1 << cpu
    return {"host": host, "cpus": hex(mask), "quota": limits.cpu_quota()}


def ranks_per_core(rank_cpus: Sequence[dict[str, Any]]) -> float:
    """On the most crowded host; below 1 where there are more cores than ranks. Pure."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for entry in rank_cpus:
        by_host.setdefault(entry["host"], []).append(entry)
    return max(len(entries) / _cores(entries) for entries in by_host.values())


def describe(rank_cpus: Sequence[dict[str, Any]]) -> str:
    """Ranks and cores of rank 0's host."""
    first_host = [entry for entry in rank_cpus if entry["host"] == rank_cpus[0]["host"]]
    return f"{len(first_host)} ranks on {_cores(first_host):g} cores"


def _cores(rank_cpus: Sequence[dict[str, Any]]) -> float:
    """Cores that the ranks of one host may use together."""
    union = 0
    for entry in rank_cpus:
        union |= int(entry["cpus"], 16)
    cores = float(bin(union).count("1"))
    for entry in rank_cpus:
        if entry["quota"] is not None:
            cores = min(cores, entry["quota"])
    return cores or 1.0
