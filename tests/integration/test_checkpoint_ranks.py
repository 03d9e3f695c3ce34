"""Ranks that die or stop in the middle of a save, and eight that do not. They are in checkpoint_ranks.py, which runs where torch is."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime import checkpoint
from tests.integration.scripts import run_program, run_ranks

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


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("what", "errors"),
    [
        ("save", ["NotCommitted", [], "step 2 was not committed: some rank"]),
        ("load", ["CheckpointError", [], "nothing was loaded from ROOT"]),
    ],
)
def test_dead_rank_in_collectives_raises_the_same_error(
    tmp_path: Path, what: str, errors: list[object]
) -> None:
    """Which one it was, a failed collective does not tell."""
    assert run_ranks("groups.py", str(tmp_path / "root"), what, world_size=2) == [errors, ["left"]]
    assert checkpoint.list_steps(tmp_path / "root") == [1]
