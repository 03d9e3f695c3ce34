"""How many ranks share how many CPU cores. What may be used is less than what is there: affinity and control groups."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..facts import limits

if TYPE_CHECKING:
    from collections.abc import Sequence


def own_seat(host: str) -> dict[str, Any]:
    """What the others need to know: this rank's host, the cores it may run on, and how many of them at a time."""
    allowed = os.sched_getaffinity(0)
    return {
        "host": host,
        "cpus": hex(sum(1 << cpu for cpu in allowed)),
        "quota": limits.cpu_quota(),
    }


def per_core(seats: Sequence[dict[str, Any]]) -> float:
    """Ranks per core on the host where it is worst; below 1 where there are cores to spare. Pure."""
    return max(
        _on_host([seat for seat in seats if seat["host"] == host])
        for host in {seat["host"] for seat in seats}
    )


def _on_host(seats: Sequence[dict[str, Any]]) -> float:
    union = 0
    for seat in seats:
        union |= int(seat["cpus"], 16)
    cores = float(bin(union).count("1"))
    quotas = [seat["quota"] for seat in seats if seat["quota"] is not None]
    return len(seats) / (min([cores, *quotas]) or 1.0)


def in_words(seats: Sequence[dict[str, Any]]) -> str:
    """Of rank 0's host."""
    mine = [seat for seat in seats if seat["host"] == seats[0]["host"]]
    return f"{len(mine)} ranks on {len(mine) / _on_host(mine):g} cores"
