"""Several jobs, readers and prune at one root at once. What they do is in checkpoint_concurrency.py, which runs where torch is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.scripts import run_program
from tests.integration.test_checkpoint_faults import place

__all__ = ["place"]

pytestmark = pytest.mark.torch


@pytest.mark.exhaustive
def test_concurrent_save_read_and_prune_leave_whole_states(place: Path) -> None:
    counts = run_program("checkpoint_concurrency", str(place))
    assert counts["overwrites"]["overwrites"] == 500
    assert [counts[name]["saves"] for name in ("same steps", "other steps", "pruned")] == [120] * 3
    assert min(count for counted in counts.values() for count in counted.values()) > 0, counts
