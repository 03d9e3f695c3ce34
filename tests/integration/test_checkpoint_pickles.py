"""Loading a checkpoint runs no pickled code unless that was allowed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.smoke_process import PYTHON, environment

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120
HARMLESS = "0.1"


def test_pickles_run_no_code_unless_allowed(tmp_path: Path) -> None:
    command = [PYTHON, "-W", "ignore", str(Path(__file__).with_name("pickles.py")), str(tmp_path)]
    settings = {**environment(), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=settings, check=False
    )
    assert "found " in result.stdout, result.stderr
    outcome = json.loads(result.stdout.rpartition("found ")[2])
    assert outcome["ran"] == []
    refused_names = {name for name, how in outcome["ended"].items() if "allow_pickle=True" in how}
    assert refused_names == {"plainly", "torchscript"}, outcome
    # What was looked at is what is taken, whatever else the bytes hold.
    assert {name: how for name, how in outcome["ended"].items() if name not in refused_names} == {
        "before_an_archive": HARMLESS,
        "beside_a_harmless_one": HARMLESS,
    }
