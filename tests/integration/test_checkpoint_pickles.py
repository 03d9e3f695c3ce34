"""Loading an object runs nobody's code, unless it was allowed: not for bytes either that two readers of archives see differently."""

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
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=settings, check=False
    )
    assert "found " in done.stdout, done.stderr
    found = json.loads(done.stdout.rpartition("found ")[2])
    assert found["ran"] == []
    refused = {name for name, how in found["ended"].items() if "allow_pickle=True" in how}
    assert refused == {"plainly", "torchscript"}, found
    # What was looked at is what is taken, whatever else the bytes hold.
    assert {name: how for name, how in found["ended"].items() if name not in refused} == {
        "before_an_archive": HARMLESS,
        "beside_a_harmless_one": HARMLESS,
    }
