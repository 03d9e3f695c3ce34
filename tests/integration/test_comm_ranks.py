"""Ranks that exchange values through real stores, for as long as a training lasts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scripts import run

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return run("store_exchanges.py")


def test_meetings_leave_nothing_in_any_kind_of_store(results: dict[str, Any]) -> None:
    assert results["left"] == {"tcp": 0, "file": 0, "hash": 0, "prefix": 0}
    assert results["keeping"] == [[[0], [1], [2]], 1]  # a store that keeps everything is asked once


def test_words_may_be_longer_than_the_server_takes_at_once(results: dict[str, Any]) -> None:
    assert results["long"] == [[True, True, True]] * 2


def test_ranks_agree_on_a_new_name_where_old_words_lie(results: dict[str, Any]) -> None:
    for kind, times in results["introduced"].items():
        assert [len(set(names)) for names in times] == [1, 1, 1], kind
        assert len({names[0] for names in times}) == 3, kind


def test_groups_one_after_the_other_at_one_port(results: dict[str, Any]) -> None:
    assert results["groups"] == [[0], [1], [2]]


def test_a_thread_that_waits_in_the_store_does_not_keep_the_ranks_from_meeting(
    results: dict[str, Any],
) -> None:
    assert results["beside"] == "met while the other waited"


def test_a_save_in_the_background_refuses_ranks_that_meet_in_collectives(
    results: dict[str, Any],
) -> None:
    assert results["refused"].startswith(
        "save_async cannot use ranks that exchange values by collectives"
    )
