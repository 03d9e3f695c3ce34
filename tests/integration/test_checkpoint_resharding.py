"""Checkpoints read by fewer and by more ranks than saved them, by our reader and by torch's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.scripts import run_ranks

pytestmark = pytest.mark.torch


def test_resharding_between_world_sizes(tmp_path: Path) -> None:
    rank_results = run_ranks("resharding.py", str(tmp_path), world_size=4)
    read = {
        name: [outcome[name] for outcome in rank_results]
        for name in rank_results[0]
        if name != "partial"
    }
    assert {"2 to 1", "2 to 4", "4 to 2"} <= set(read)
    wrong = {name: differences for name, differences in read.items() if any(differences)}
    assert wrong == {}
    assert [
        sum(of_rank is not None for of_rank in read[name])
        for name in ("2 to 1", "2 to 4", "4 to 2")
    ] == [1, 4, 2]
    assert [outcome["partial"].partition(" (")[0] for outcome in rank_results[:2]] == [
        "sum is a DTensor whose ranks hold summands"
    ] * 2
