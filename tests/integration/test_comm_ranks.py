"""Ranks that exchange values through real stores, for as long as a training lasts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scripts import run

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return run("store_exchanges.py")


@pytest.mark.exhaustive
def test_all_gather_leaves_no_keys_in_any_store(results: dict[str, Any]) -> None:
    assert results["left"] == {"tcp": 0, "file": 0, "hash": 0, "prefix": 0}
    assert results["keeping"] == [[[0], [1], [2]], 1]  # a store that keeps everything is asked once


def test_payloads_may_exceed_the_server_limit(results: dict[str, Any]) -> None:
    assert results["long"] == [[True, True, True]] * 2


def test_ranks_agree_on_a_fresh_nonce_despite_old_keys(results: dict[str, Any]) -> None:
    for kind, times in results["introduced"].items():
        assert [len(set(names)) for names in times] == [1, 1, 1], kind
        assert len({names[0] for names in times}) == 3, kind


def test_successive_groups_share_a_port(results: dict[str, Any]) -> None:
    assert results["groups"] == [[0], [1], [2]]


def test_thread_waiting_in_the_store_does_not_block_all_gather(
    results: dict[str, Any],
) -> None:
    assert results["beside"] == "met while the other waited"
