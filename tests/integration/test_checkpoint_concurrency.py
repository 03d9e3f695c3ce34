"""Several jobs, readers and prune at one root at once. What they do is in checkpoint_concurrency.py, which runs where torch is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.smoke_process import PYTHON, environment
from tests.integration.test_checkpoint_faults import place

__all__ = ["place"]

PROJECT = Path(__file__).parents[2]
TIMEOUT_S = 300

pytestmark = pytest.mark.torch


@pytest.mark.exhaustive
def test_concurrent_save_read_and_prune_leave_whole_states(place: Path) -> None:
    command = [PYTHON, "-W", "ignore", "-m", "tests.integration.checkpoint_concurrency", str(place)]
    variables = environment() | {"PYTHONPATH": str(PROJECT)}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=PROJECT,
        env=variables,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    counts = json.loads(result.stdout.splitlines()[-1])
    assert counts["overwrites"]["overwrites"] == 500
    assert [counts[name]["saves"] for name in ("same steps", "other steps", "pruned")] == [120] * 3
    assert min(count for counted in counts.values() for count in counted.values()) > 0, counts
