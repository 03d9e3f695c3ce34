"""`provision jobs log --follow` of an array of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from tests.programs import write_program


@pytest.mark.parametrize(("last", "status"), [("COMPLETED", 0), ("FAILED", 1)])
def test_an_array_succeeds_if_all_its_tasks_do(
    last: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for number, state in enumerate(("COMPLETED", last)):
        log = tmp_path / f"train-12_{number}.log"
        log.write_text(f"task {number}\n")
        lines.append(
            f"JobId={13 - number} ArrayJobId=12 ArrayTaskId={number} JobName=train "
            f"JobState={state} Reason=None WorkDir={tmp_path} StdOut={log}"
        )
    (tmp_path / "jobs").write_text("\n".join(lines) + "\n")
    write_program(tmp_path / "scontrol", f"#!/bin/sh\ncat {tmp_path}/jobs\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["jobs", "log", "--follow", "12"])
    assert result.exit_code == status, result.output
    assert "==> train-12_0.log\ntask 0\n==> train-12_1.log\ntask 1\n" in result.stdout
