"""Manifests with other numbers and a digest that fits: damage, or the right values; never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.scripts import run

pytestmark = pytest.mark.torch


@pytest.mark.exhaustive
def test_damaged_manifests_load_nothing_wrong(tmp_path: Path) -> None:
    result = run("damaged_manifests.py", str(tmp_path))
    assert result["wrong"] == []
    ends = result["ends"]
    assert set(ends) <= {"DamagedFile", "loaded", "CheckpointError"}
    assert ends["DamagedFile"] > 200 and ends["loaded"] > 0
