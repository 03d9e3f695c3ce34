"""Every pair of ranks exchanges data in both directions, to find a weak link.

A ring is as slow as its slowest link and does not show which one that is. In n - 1 rounds every rank
meets every other one once, all pairs of a round at the same time; so a shared wire is as busy as in
a ring.

Between hosts, ranks with the same local rank are a rail: in rail-optimized networks, their network
cards share a switch, and NCCL keeps to the rail (NCCL_CROSS_NIC in its user guide).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ... import measurement
from ...outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...context import RankContext

MIB = 1 << 20
BYTES = {"cpu": 1 * MIB, "cuda": 64 * MIB}
WARM_UP, REPEATS = 1, 5
# More rounds take too long for what they add: nodes can be paired by `provision smoke --pairs`.
MOST_RANKS = 64
FEWEST_RANKS = 3
# Of the median of the pairs of its kind.
LEAST_SHARE = 0.5
# With fewer pairs of a kind the median means little.
FEWEST_PAIRS = 3
SAME_HOST, OTHER_HOST = "on one host", "between hosts"


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """The pairs of each round, by the circle method: one rank stays, the others rotate. With an
    odd number, one rank pauses in each round."""
    seats: list[int | None] = list(range(ranks))
    if ranks % 2:
        seats.append(None)
    half = len(seats) // 2
    result = []
    for _ in range(len(seats) - 1):
        pairs = []
        for first, second in zip(seats[:half], reversed(seats[half:])):
            if first is not None and second is not None:
                pairs.append((min(first, second), max(first, second)))
        result.append(pairs)
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return result


def measure(context: RankContext) -> list[list[Any]]:
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
        distributed.barrier(**({"device_ids": [context.gpu]} if context.backend == "nccl" else {}))
        partner = _partner(pairs, rank)
        if partner is None:
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
            if context.on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        rates.append([partner, BYTES[kind] / measurement.median(seconds[WARM_UP:]) / 1e9])
    return rates


def _partner(pairs: Sequence[tuple[int, int]], rank: int) -> int | None:
    for first, second in pairs:
        if rank in (first, second):
            return second if rank == first else first
    return None


def is_worthwhile(ranks: int) -> bool:
    return FEWEST_RANKS <= ranks <= MOST_RANKS


def table(measured: Sequence[Sequence[Sequence[Any]]]) -> dict[tuple[int, int], float]:
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


def slow_rails(rail_rates: Mapping[int, float]) -> dict[int, float]:
    """The rails below LEAST_SHARE of the median of the others, and that median in GB/s."""
    slow = {}
    for rail, gb_s in rail_rates.items():
        others = [rate for other, rate in rail_rates.items() if other != rail]
        if others and gb_s < measurement.median(others) * LEAST_SHARE:
            slow[rail] = measurement.median(others)
    return slow


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
        if kind == OTHER_HOST and _common_rank(weak) is None:
            rail_rates = rails(pairs, hosts, local_ranks)
            slow = slow_rails(rail_rates)
            findings += _rail_findings(slow, rail_rates, local_ranks)
            weak = [pair for pair in weak if not slow.keys() & {local_ranks[rank] for rank in pair}]
        findings += _findings(weak, pairs, kind, median)
    return findings


def _rail_findings(
    slow: Mapping[int, float], rail_rates: Mapping[int, float], local_ranks: Sequence[int]
) -> list[Finding]:
    findings = []
    for rail, median in slow.items():
        ranks = tuple(rank for rank, local_rank in enumerate(local_ranks) if local_rank == rail)
        message = (
            f"rail {rail} carries {rail_rates[rail]:.3g} GB/s in each direction between hosts;"
            f" the median of the other rails is {median:.3g}"
        )
        findings.append(Finding("rail-slow", message, ranks))
    return findings


def _common_rank(weak: Sequence[tuple[int, int]]) -> int | None:
    """The one rank that several weak pairs share."""
    common = set(weak[0]).intersection(*weak) if weak else set()
    return common.pop() if len(weak) > 1 and len(common) == 1 else None


def _findings(
    weak: Sequence[tuple[int, int]],
    rates: Mapping[tuple[int, int], float],
    kind: str,
    median: float,
) -> list[Finding]:
    """One for a rank that all weak pairs share, which is then the cause; else one for each pair."""
    rank = _common_rank(weak)
    if rank is not None:
        slowest = min(rates[pair] for pair in weak)
        message = (
            f"{len(weak)} of its links {kind} are slow, down to {slowest:.3g} GB/s;"
            f" the median is {median:.3g}"
        )
        return [Finding("pair-slow", message, (rank,))]
    findings = []
    for pair in weak:
        message = (
            f"the link between them, {kind}, carries {rates[pair]:.3g} GB/s in each direction;"
            f" the median is {median:.3g}"
        )
        findings.append(Finding("pair-slow", message, pair))
    return findings
