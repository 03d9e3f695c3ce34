"""Saving in the background: the cases are in async_saves.py, this checks their results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provision_runtime.checkpoint import list_steps, verify
from tests.integration.scripts import run

pytestmark = pytest.mark.torch


def test_async_saves_are_correct(tmp_path: Path) -> None:
    result = run("async_saves.py", "cases", str(tmp_path))
    assert result["problems"] == {}, "\n".join(result["problems"].values())
    assert result["cases"] == 10


@pytest.mark.exhaustive
def test_process_waits_for_its_save(tmp_path: Path) -> None:
    run("async_saves.py", "exit", str(tmp_path))
    assert list_steps(tmp_path) == [1]
    assert verify(tmp_path) == []


@pytest.mark.exhaustive
def test_failed_host_copy_is_raised_on_all_ranks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        result = list(
            pool.map(lambda rank: run("async_saves.py", "rank", str(tmp_path), str(rank)), range(2))
        )
    assert result == [{"failed": [1], "steps": [2]}] * 2
