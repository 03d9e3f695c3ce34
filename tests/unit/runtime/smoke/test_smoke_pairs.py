"""Every pair of ranks is measured once, and a weak one is named."""

from __future__ import annotations

from itertools import combinations

import pytest

from provision_runtime.smoke.phases.collectives import pairs


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 15, 16, 64])
def test_every_pair_meets_once_and_no_rank_twice_in_a_round(ranks: int) -> None:
    rounds = pairs.rounds(ranks)
    assert len(rounds) == (ranks - 1 if ranks % 2 == 0 else ranks)
    met = [pair for each in rounds for pair in each]
    assert sorted(met) == sorted(combinations(range(ranks), 2))
    for each in rounds:
        members = [rank for pair in each for rank in pair]
        assert len(set(members)) == len(members)


@pytest.mark.parametrize("ranks", [65, 96, 2400, 8001])
def test_among_many_ranks_each_has_partners_up_to_the_other_half(ranks: int) -> None:
    rounds = pairs.rounds(ranks)
    assert len(rounds) == (ranks - 1).bit_length()
    members = set()
    for each in rounds:
        ranks_of_round = [rank for pair in each for rank in pair]
        assert len(set(ranks_of_round)) == len(ranks_of_round)
        members.update(ranks_of_round)
    assert members == set(range(ranks))


def test_a_weak_gpu_among_many_is_named_alone() -> None:
    hosts = [f"n{rank // 8}" for rank in range(128)]
    table = {pair: 45.0 for each in pairs.rounds(128) for pair in each}
    for pair in table:
        if 77 in pair:
            table[pair] = 9.0
    assert set(named_ranks(table, hosts)) == {(77,)}


def rates(ranks: int, gb_s: float, **slow: float) -> dict[tuple[int, int], float]:
    """slow: `_1_5=20.0` is the pair 1 and 5."""
    result = dict.fromkeys(combinations(range(ranks), 2), gb_s)
    for name, value in slow.items():
        _, first, second = name.split("_")
        result[int(first), int(second)] = value
    return result


def named_ranks(table: dict[tuple[int, int], float], hosts: list[str]) -> list[tuple[int, ...]]:
    return [finding.ranks for finding in pairs.weak_pairs(table, hosts, local_ranks(hosts))]


def local_ranks(hosts: list[str]) -> list[int]:
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


def test_a_weak_pair_is_named() -> None:
    (finding,) = pairs.weak_pairs(rates(8, 180.0, _1_5=20.0), ["n1"] * 8, list(range(8)))
    assert (finding.id, finding.ranks) == ("pair-slow", (1, 5))
    assert finding.message == (
        "the link between them, on one host, carries 20 GB/s in each direction; the median is 180"
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
@pytest.mark.parametrize("ranks_per_host", [2, 8])
def test_a_slow_rail_is_named_instead_of_its_pairs(hosts: int, ranks_per_host: int) -> None:
    names = [f"n{rank // ranks_per_host}" for rank in range(hosts * ranks_per_host)]
    on_rail = tuple(range(1, len(names), ranks_per_host))
    table = between(names, 5.0, *on_rail)
    (finding,) = pairs.weak_pairs(table, names, local_ranks(names))
    assert (finding.id, finding.ranks) == ("rail-slow", on_rail)
    assert finding.message == (
        "rail 1 carries 5 GB/s in each direction between hosts; the median of the other rails is 45"
    )


def test_a_slow_card_of_one_host_is_no_slow_rail() -> None:
    hosts = ["n0"] * 8 + ["n1"] * 8
    assert named_ranks(between(hosts, 5.0, 3), hosts) == [(3,)]


def test_equal_rails_are_fine() -> None:
    hosts = ["n0"] * 8 + ["n1"] * 8
    table = between(hosts, 45.0)
    assert pairs.rails(table, hosts, local_ranks(hosts)) == dict.fromkeys(range(8), 45.0)
    assert named_ranks(table, hosts) == []


def test_ranks_of_one_host_have_no_rails() -> None:
    assert pairs.rails(rates(8, 180.0), ["n1"] * 8, list(range(8))) == {}
