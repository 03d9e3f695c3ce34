"""Saving in the background: the cases are in async_saves.py, this checks their results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provision_runtime.checkpoint import list_steps, verify
from tests.integration.scripts import run

pytestmark = pytest.mark.torch


def test_saves_in_the_background_are_right(tmp_path: Path) -> None:
    found = run("async_saves.py", "cases", str(tmp_path))
    assert found["problems"] == {}, "\n".join(found["problems"].values())
    assert found["cases"] == 10


def test_the_process_does_not_end_before_its_save(tmp_path: Path) -> None:
    run("async_saves.py", "exit", str(tmp_path))
    assert list_steps(tmp_path) == [1]
    assert verify(tmp_path) == []


def test_where_one_rank_cannot_copy_its_state_all_are_told(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda rank: run("async_saves.py", "rank", str(tmp_path), str(rank)), range(2))
        )
    assert found == [{"failed": [1], "steps": [2]}] * 2
