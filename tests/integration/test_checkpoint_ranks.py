"""Ranks that die or stop in the middle of a save, and eight that do not. They are in checkpoint_ranks.py, which runs where torch is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.scripts import run_program

pytestmark = pytest.mark.torch


def test_dead_or_stopped_rank_is_named_and_nothing_committed(tmp_path: Path) -> None:
    assert run_program("checkpoint_ranks", str(tmp_path)) == {
        "SIGKILL 1": [1],
        "SIGKILL 0": [0],
        "SIGSTOP 1": [1],
        "SIGSTOP 0": [0],
        "SIGKILL 0 with the store": [0],
        "eight": ["done"] * 8,
    }
