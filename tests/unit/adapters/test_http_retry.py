"""When a request is tried again, and how long we wait before."""

from __future__ import annotations

import time

import pytest

from provision.adapters.http import Backoff


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def test_pauses_double_up_to_the_longest(pauses: list[float]) -> None:
    backoff = Backoff(5, first_pause_s=0.5, longest_pause_s=3.0)
    while True:
        backoff.count_failure()
        if backoff.is_exhausted:
            break
        backoff.wait()
    assert pauses == [0.5, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("header", ["Mon, 01 Jan 99999 00:00:00 GMT", "9" * 5000, "soon", "-1", ""])
def test_unparsable_retry_after_is_ignored(header: str, pauses: list[float]) -> None:
    backoff = Backoff(5, first_pause_s=1.0)
    backoff.count_failure()
    backoff.wait(retry_after=header)
    assert pauses == [1.0]


def test_retry_after_is_honored_up_to_the_longest_pause(pauses: list[float]) -> None:
    backoff = Backoff(5, first_pause_s=1.0, longest_pause_s=30.0)
    backoff.wait(retry_after="7")
    backoff.wait(retry_after="3600")
    assert pauses == [7.0, 30.0]
