"""Every pair of ranks exchanges data in both directions, to find a weak link.

A ring is as slow as its slowest link and does not show which one that is. In every round each rank
meets one other, all pairs of a round at the same time; so a shared wire is as busy as in a ring.

Between hosts, ranks with the same position on their host are a rail: in rail-optimized networks,
their network cards share a switch.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from ....comm.rank_names import name_ranks
from ....report.text import format_count
from ... import measurement
from ...outcome import Finding, grouped
from .. import barrier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...context import RankContext

    # GB/s in each direction, by pair.
    Rates = Mapping[tuple[int, int], float]

MIB = 1 << 20
BYTES = {"cpu": 1 * MIB, "cuda": 64 * MIB}
WARM_UP, REPEATS = 1, 5
# Beyond, all pairs would take too long for what they add.
MOST_RANKS = 64
FEWEST_RANKS = 3
# A weak pair is below this share of the median of its kind.
LEAST_SHARE = 0.5
# With fewer pairs of a kind the median means little.
FEWEST_PAIRS = 3


def distances(ranks: int) -> list[int]:
    """What each round adds to a rank, bit by bit, to make its partner. Up to MOST_RANKS every pair
    meets once. Beyond, each rank has few partners, on its host and on its rail and up to the other
    half, and a weak one still differs from the median."""
    bits = (ranks - 1).bit_length()
    if ranks > MOST_RANKS:
        return [1 << bit for bit in range(bits)]
    return list(range(1, 1 << bits))


def measure(context: RankContext) -> list[tuple[int, float]]:
    """This rank's partners, and GB/s in each direction while both are in use."""
    import torch
    from torch import distributed

    size = BYTES["cuda" if context.on_gpu else "cpu"]
    outgoing = torch.zeros(size, dtype=torch.uint8, device=context.device)
    incoming = torch.empty_like(outgoing)
    rates = []
    for distance in distances(context.env.world_size):
        context.begin_collective("send_recv of pairs", f"at distance {distance}")
        barrier.backend_barrier(context)()
        partner = context.env.rank ^ distance
        if partner >= context.env.world_size:
            continue
        seconds = []
        for _ in range(WARM_UP + REPEATS):
            started = time.perf_counter()
            operations = [
                distributed.P2POp(distributed.isend, outgoing, partner),
                distributed.P2POp(distributed.irecv, incoming, partner),
            ]
            for work in distributed.batch_isend_irecv(operations):
                work.wait()
            context.synchronize()
            seconds.append(time.perf_counter() - started)
        rates.append((partner, size / measurement.median(seconds[WARM_UP:]) / 1e9))
    return rates


def table(measured: Sequence[Sequence[tuple[int, float]]]) -> dict[tuple[int, int], float]:
    """GB/s of each pair, as the slower of the two measured it."""
    result: dict[tuple[int, int], float] = {}
    for rank, rates in enumerate(measured):
        for partner, gb_s in rates:
            pair = (min(rank, partner), max(rank, partner))
            result[pair] = min(gb_s, result.get(pair, gb_s))
    return result


def weak_pairs(rates: Rates, hosts: Sequence[str]) -> list[Finding]:
    """Pairs far below the median of their kind: on one host, or between hosts. Names the fewest
    ranks that all weak pairs of a kind have: a weak GPU, or those of a weak rail."""
    kinds = grouped(
        ("on one host" if hosts[first] == hosts[second] else "between hosts", (first, second))
        for first, second in sorted(rates)
    )
    findings = []
    for kind, pairs in kinds.items():
        median = measurement.median([rates[pair] for pair in pairs])
        weak = [pair for pair in pairs if rates[pair] < median * LEAST_SHARE]
        if len(pairs) < FEWEST_PAIRS or not weak:
            continue
        slowest = min(weak, key=lambda pair: rates[pair])
        message = (
            f"{format_count(len(weak), 'link')} {kind} below half of the median, {median:.3g} GB/s"
            f" in each direction; that of {name_ranks(slowest)} carries {rates[slowest]:.3g}"
        )
        ranks = weak[0] if len(weak) == 1 else _ranks_in_common(weak)
        findings.append(Finding("pair-slow", message, tuple(sorted(ranks))))
    return findings


def _ranks_in_common(pairs: Sequence[tuple[int, int]]) -> set[int]:
    """The ranks, as few as may be, of which each pair has one."""
    ranks: set[int] = set()
    while remaining := [rank for pair in pairs if ranks.isdisjoint(pair) for rank in pair]:
        ranks.add(Counter(remaining).most_common(1)[0][0])
    return ranks
