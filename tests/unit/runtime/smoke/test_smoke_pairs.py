"""Every pair of ranks is measured once, and a weak one is named."""

from __future__ import annotations

from itertools import combinations

import pytest

from provision_runtime.smoke.phases.collectives import pairs


def met(ranks: int) -> list[tuple[int, int]]:
    """The pairs of all rounds. That no rank is in two of a round, and both agree, is in the XOR."""
    return [
        (rank, rank ^ distance)
        for distance in pairs.distances(ranks)
        for rank in range(ranks)
        if rank < rank ^ distance < ranks
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 15, 16, 64])
def test_every_pair_meets_once(ranks: int) -> None:
    assert sorted(met(ranks)) == list(combinations(range(ranks), 2))


@pytest.mark.parametrize("ranks", [65, 96, 2400, 8001])
def test_among_many_ranks_each_has_partners_up_to_the_other_half(ranks: int) -> None:
    assert len(pairs.distances(ranks)) == (ranks - 1).bit_length()
    assert {rank for pair in met(ranks) for rank in pair} == set(range(ranks))


def test_a_weak_gpu_among_many_is_named_alone() -> None:
    hosts = [f"n{rank // 8}" for rank in range(128)]
    table = {pair: 9.0 if 77 in pair else 45.0 for pair in met(128)}
    assert set(named_ranks(table, hosts)) == {(77,)}


def rates(ranks: int, gb_s: float, **slow: float) -> dict[tuple[int, int], float]:
    """slow: `_1_5=20.0` is the pair 1 and 5."""
    result = dict.fromkeys(combinations(range(ranks), 2), gb_s)
    for name, value in slow.items():
        _, first, second = name.split("_")
        result[int(first), int(second)] = value
    return result


def named_ranks(table: dict[tuple[int, int], float], hosts: list[str]) -> list[tuple[int, ...]]:
    return [finding.ranks for finding in pairs.weak_pairs(table, hosts)]


def test_a_weak_pair_is_named() -> None:
    (finding,) = pairs.weak_pairs(rates(8, 180.0, _1_5=20.0), ["n1"] * 8)
    assert (finding.id, finding.ranks) == ("pair-slow", (1, 5))
    assert finding.message == (
        "1 link on one host below half of the median, 180 GB/s in each direction; "
        "that of ranks 1, 5 carries 20"
    )


def test_a_weak_gpu_is_named_instead_of_all_its_pairs() -> None:
    slow = {f"_{min(3, other)}_{max(3, other)}": 30.0 for other in range(8) if other != 3}
    assert named_ranks(rates(8, 180.0, **slow), ["n1"] * 8) == [(3,)]


def test_links_between_hosts_are_compared_with_one_another() -> None:
    hosts = ["n1"] * 4 + ["n2"] * 4
    table = rates(8, 180.0)
    for first, second in table:
        if hosts[first] != hosts[second]:
            table[first, second] = 22.0
    assert named_ranks(table, hosts) == []
    table[2, 6] = 5.0
    assert named_ranks(table, hosts) == [(2, 6)]


def test_two_of_a_kind_say_nothing() -> None:
    assert named_ranks({(0, 1): 1.0, (0, 2): 100.0}, ["n1"] * 3) == []


def test_the_slower_side_counts() -> None:
    assert pairs.table([[(1, 10.0)], [(0, 8.0)]]) == {(0, 1): 8.0}


def between(hosts: list[str], gb_s: float, *slow_ranks: int) -> dict[tuple[int, int], float]:
    """180 GB/s on a host, 45 between hosts, and gb_s between hosts for these ranks."""
    table = rates(len(hosts), 180.0)
    for first, second in table:
        if hosts[first] != hosts[second]:
            table[first, second] = gb_s if {first, second} & set(slow_ranks) else 45.0
    return table


@pytest.mark.parametrize("hosts", [2, 4])
def test_the_ranks_of_a_slow_rail_are_named_once(hosts: int) -> None:
    names = [f"n{rank // 8}" for rank in range(hosts * 8)]
    on_rail = tuple(range(1, len(names), 8))
    assert named_ranks(between(names, 5.0, *on_rail), names) == [on_rail]


def test_equal_links_are_fine() -> None:
    hosts = ["n0"] * 8 + ["n1"] * 8
    assert named_ranks(between(hosts, 45.0), hosts) == []
    assert named_ranks(between(hosts, 5.0, 3), hosts) == [(3,)]
