"""Exchanges through a store, and which rank is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provision_runtime.comm import store as comm_store
from tests.clocks import Clock


class Store:
    """A dictionary with the two calls of a c10d store that we use."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        assert expected == desired == comm_store.ABSENT
        return self.values.get(key, expected.encode())


class Gone:
    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Broken pipe")

    compare_set = set


def gatherer(store: Any, rank: int, clock: Clock, world_size: int = 2) -> comm_store.StoreAllGather:
    return comm_store.StoreAllGather(
        comm_store.StoreClient(store), rank, world_size, clock.read, clock.sleep
    )


def answered(store: Store, name: str, **payloads: Any) -> None:
    """What other ranks already sent in the first exchange."""
    for rank, payload in payloads.items():
        store.set(f"exchange/1/{name}/{rank[1:]}", json.dumps({"payload": payload}))


def test_all_gather_returns_payloads_in_rank_order() -> None:
    store, clock = Store(), Clock()
    answered(store, "hello", _1={"host": "b"})
    assert gatherer(store, 0, clock).exchange("hello", None, 5) == [None, {"host": "b"}]
    assert gatherer(store, 1, clock).exchange("hello", {"host": "b"}, 5) == [None, {"host": "b"}]


def test_silent_rank_is_named_on_every_rank() -> None:
    store, clock = Store(), Clock()
    answered(store, "hello", _2="here")
    for rank, payload in ((0, "first"), (2, "here")):
        with pytest.raises(
            comm_store.RanksMissing, match="rank 1 did not answer at hello"
        ) as missing:
            gatherer(store, rank, clock, 3).exchange("hello", payload, 5)
        assert missing.value.payloads == {0: "first", 2: "here"}
    assert 5 <= clock.now < 6


def test_failure_shortens_the_wait_for_others() -> None:
    clock = Clock()
    with pytest.raises(comm_store.RanksMissing):
        gatherer(Store(), 0, clock).exchange_once("phase", "bad", 600, "bad".__eq__)
    assert clock.now < comm_store.GRACE_S + 1


def test_silent_rank_0_is_named() -> None:
    with pytest.raises(comm_store.RanksMissing, match="rank 0 did not answer"):
        gatherer(Store(), 1, Clock()).exchange("hello", "here", 5)


def test_repeated_all_gathers_of_one_name_are_separate() -> None:
    store, clock = Store(), Clock()
    all_gather = gatherer(store, 0, clock, 1)
    assert [all_gather.exchange("again", turn, 5) for turn in (1, 2)] == [[1], [2]]


def test_lost_store_is_reported() -> None:
    with pytest.raises(comm_store.StoreLost, match="Broken pipe"):
        gatherer(Gone(), 0, Clock()).exchange("hello", 1, 5)


def test_only_rank_0_waits_for_others_and_with_a_deadline() -> None:
    clock = Clock()
    gatherer(Store(), 1, clock).leave(5)
    assert clock.now == 0
    gatherer(Store(), 0, clock, 64).leave(5)
    assert 5 <= clock.now < 6


def test_rank_that_left_a_phase_is_not_waited_for() -> None:
    store, clock = Store(), Clock()
    store.set("abandoned/barrier", "1")
    for rank in (0, 2):
        with pytest.raises(comm_store.PhaseAbandoned, match="rank 1 left the phase"):
            gatherer(store, rank, clock, 3).exchange(
                "hello", None, 60, abort_key="abandoned/barrier"
            )
    assert clock.now < 1


def test_ranks_meet_at_phase_end_after_any_number_of_all_gathers() -> None:
    store, clock = Store(), Clock()
    ahead, behind = gatherer(store, 1, clock), gatherer(store, 0, clock)
    with pytest.raises(comm_store.RanksMissing):
        ahead.exchange("only one came", None, 0.1)
    with pytest.raises(comm_store.RanksMissing):
        ahead.exchange_once("barrier", "early", 0.1)
    assert behind.exchange_once("barrier", "late", 5) == ["late", "early"]
