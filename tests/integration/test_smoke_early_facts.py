"""The facts of all ranks are reported though their rendezvous failed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.smoke_process import FOLDER, PYTHON, TIMEOUT_S, environment

pytestmark = pytest.mark.torch


@pytest.mark.exhaustive
def test_facts_survive_a_rank_that_hangs_before_the_store(tmp_path: Path) -> None:
    command = [PYTHON, str(FOLDER), "smoke", "--quick", "--only", "barrier", "--backend", "gloo"]
    command += ["--out", str(tmp_path), "--inject", "hang:1:rendezvous"]
    command += ["--deadline", "rendezvous=8"]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(), check=False
    )
    assert answer.returncode == 1, answer.stdout + answer.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    facts, rendezvous = report["phases"][:2]
    assert facts["verdict"] in ("pass", "warn"), facts
    assert [row["rank"] for row in facts["data"]["ranks"]] == [0, 1]
    assert rendezvous["verdict"] == "fail"
