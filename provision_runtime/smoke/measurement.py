"""Shared by all measurements: statistics of times, bandwidths, and how many ranks share a core.

Pure except for `rank_cores`. Bandwidths are defined as in nccl-tests' doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TypedDict

from ..facts import limits
from .outcome import grouped


class RankCores(TypedDict):
    """A rank's host, the cores that it may run on (a mask), and how many of them at a time."""

    host: str
    cpus: str
    quota: float | None


def percentile(values: Sequence[float], percent: float) -> float:
    """By the nearest-rank method: with fewer than 100 values the 99th is the largest."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def algbw_gb_s(size_bytes: int, seconds: float) -> float:
    return size_bytes / seconds / 1e9


def busbw_gb_s(size_bytes: int, seconds: float, ranks: int) -> float | None:
    """Of an all_reduce: each element crosses 2(n-1) times over n links. None for one rank, which has
    no link.

    This holds for rings and trees, not where the switch adds up (NVLS, SHARP): there busbw may exceed
    what the wire can carry.
    """
    return algbw_gb_s(size_bytes, seconds) * 2 * (ranks - 1) / ranks if ranks > 1 else None


def format_time(microseconds: float) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"


def rank_cores(host: str) -> RankCores:
    mask = sum(1 << cpu for cpu in os.sched_getaffinity(0))
    return {"host": host, "cpus": hex(mask), "quota": limits.cpu_quota()}


def ranks_per_core(ranks: Sequence[RankCores]) -> float:
    """On the most crowded host; below 1 where there are more cores than ranks."""
    by_host = grouped((entry["host"], entry) for entry in ranks)
    return max(len(entries) / _cores(entries) for entries in by_host.values())


def describe_cpu_share(ranks: Sequence[RankCores]) -> str:
    """Ranks and cores of rank 0's host."""
    first_host = [entry for entry in ranks if entry["host"] == ranks[0]["host"]]
    return f"{len(first_host)} ranks on {_cores(first_host):g} cores"


def _cores(ranks: Sequence[RankCores]) -> float:
    # Those that the ranks of one host may use together.
    union = 0
    for entry in ranks:
        union |= int(entry["cpus"], 16)
    quotas = [entry["quota"] for entry in ranks if entry["quota"]]
    return min([float(bin(union).count("1")), *quotas])
