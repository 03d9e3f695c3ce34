"""Every pair of ranks exchanges data in both directions, to find a weak link.

A ring is as slow as its slowest link and does not show which one that is. In n - 1 rounds every rank
meets every other one once, all pairs of a round at the same time; so a shared wire is as busy as in
a ring.

Between hosts, ranks with the same local rank are a rail: in rail-optimized networks, their network
cards share a switch, and NCCL keeps to the rail (NCCL_CROSS_NIC in its user guide).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ... import measurement
from ...outcome import Finding
from .. import barrier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...context import RankContext

MIB = 1 << 20
BYTES = {"cpu": 1 * MIB, "cuda": 64 * MIB}
WARM_UP, REPEATS = 1, 5
# More rounds than that take too long for what they add.
MOST_RANKS = 64
FEWEST_RANKS = 3
# A weak pair is below this share of the median of its kind.
LEAST_SHARE = 0.5
# With fewer pairs of a kind the median means little.
FEWEST_PAIRS = 3
SAME_HOST, OTHER_HOST = "on one host", "between hosts"


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """The pairs of each round. Up to MOST_RANKS every pair, by the circle method: one rank stays,
    the others rotate; with an odd number, one rank pauses in each round. Beyond, pairs at distances
    of 1, 2, 4 and so on up to the other half: each rank has few partners, on its host and on its
    rail, and a weak one still differs from the median."""
    if ranks > MOST_RANKS:
        distances = [1 << power for power in range((ranks - 1).bit_length())]
        return [[(i, i + d) for i in range(ranks - d) if not i & d] for d in distances]
    circle = list(range(ranks + ranks % 2))
    half = len(circle) // 2
    result = []
    for _ in circle[1:]:
        pairs = [
            (min(first, second), max(first, second))
            for first, second in zip(circle[:half], reversed(circle[half:]))
            if max(first, second) < ranks
        ]
        result.append(pairs)
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return result


def measure(context: RankContext) -> list[tuple[int, float]]:
    """This rank's partners, and GB/s in each direction while both are in use."""
    import torch
    from torch import distributed

    kind = "cuda" if context.on_gpu else "cpu"
    outgoing = torch.zeros(BYTES[kind], dtype=torch.uint8, device=context.device)
    incoming = torch.empty_like(outgoing)
    rank = context.env.rank
    rates = []
    for number, pairs in enumerate(rounds(context.env.world_size)):
        context.begin_collective("send_recv of pairs", f"round {number}")
        barrier.backend_barrier(context)()
        pair_of_rank = next((pair for pair in pairs if rank in pair), None)
        if pair_of_rank is None:
            continue
        partner = sum(pair_of_rank) - rank
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
        rates.append((partner, BYTES[kind] / measurement.median(seconds[WARM_UP:]) / 1e9))
    return rates


def table(measured: Sequence[Sequence[tuple[int, float]]]) -> dict[tuple[int, int], float]:
    """GB/s of each pair, as the slower of the two measured it."""
    result: dict[tuple[int, int], float] = {}
    for rank, rates in enumerate(measured):
        for partner, gb_s in rates:
            pair = (min(rank, partner), max(rank, partner))
            result[pair] = min(gb_s, result.get(pair, gb_s))
    return result


def rails(
    rates: Mapping[tuple[int, int], float], hosts: Sequence[str], local_ranks: Sequence[int]
) -> dict[int, float]:
    """GB/s of each rail, by local rank: the median of its pairs, which are all between hosts."""
    pairs_of_rail: dict[int, list[float]] = {}
    for (first, second), gb_s in rates.items():
        if hosts[first] != hosts[second] and local_ranks[first] == local_ranks[second]:
            pairs_of_rail.setdefault(local_ranks[first], []).append(gb_s)
    return {rail: measurement.median(gb_s) for rail, gb_s in sorted(pairs_of_rail.items())}


def weak_pairs(
    rates: Mapping[tuple[int, int], float], hosts: Sequence[str], local_ranks: Sequence[int]
) -> list[Finding]:
    """Pairs far below the median of their kind: on one host, or between hosts. Between hosts, a
    slow rail is named instead of its pairs."""
    by_kind: dict[str, dict[tuple[int, int], float]] = {SAME_HOST: {}, OTHER_HOST: {}}
    for (first, second), gb_s in rates.items():
        kind = SAME_HOST if hosts[first] == hosts[second] else OTHER_HOST
        by_kind[kind][first, second] = gb_s
    findings = []
    for kind, pairs in by_kind.items():
        if len(pairs) < FEWEST_PAIRS:
            continue
        median = measurement.median(list(pairs.values()))
        weak = [pair for pair, gb_s in sorted(pairs.items()) if gb_s < median * LEAST_SHARE]
        common = set(weak[0]).intersection(*weak) if len(weak) > 1 else set()
        if len(common) == 1:
            # The rank that all weak pairs share is the cause.
            slowest = min(pairs[pair] for pair in weak)
            message = (
                f"{len(weak)} of its links {kind} are slow, down to {slowest:.3g} GB/s;"
                f" the median is {median:.3g}"
            )
            findings.append(Finding("pair-slow", message, tuple(common)))
            continue
        if kind == OTHER_HOST:
            slow_rails = _slow_rails(rails(pairs, hosts, local_ranks), local_ranks)
            findings += slow_rails
            on_slow_rails = {rank for finding in slow_rails for rank in finding.ranks}
            weak = [pair for pair in weak if not on_slow_rails & set(pair)]
        for pair in weak:
            message = (
                f"the link between them, {kind}, carries {pairs[pair]:.3g} GB/s in each direction;"
                f" the median is {median:.3g}"
            )
            findings.append(Finding("pair-slow", message, pair))
    return findings


def _slow_rails(rail_rates: Mapping[int, float], local_ranks: Sequence[int]) -> list[Finding]:
    """The rails below LEAST_SHARE of the median of the others."""
    findings = []
    for rail, gb_s in rail_rates.items():
        rates = [rate for other, rate in rail_rates.items() if other != rail]
        if rates and gb_s < measurement.median(rates) * LEAST_SHARE:
            ranks = tuple(rank for rank, local_rank in enumerate(local_ranks) if local_rank == rail)
            message = (
                f"rail {rail} carries {gb_s:.3g} GB/s in each direction between hosts;"
                f" the median of the other rails is {measurement.median(rates):.3g}"
            )
            findings.append(Finding("rail-slow", message, ranks))
    return findings
