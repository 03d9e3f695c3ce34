"""The smoke test as a process, for the tests that start it: its exit, its lines, its report, and nothing left running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import provision_runtime
from provision_runtime.report import model

PYTHON = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
FOLDER = Path(str(provision_runtime.__file__)).parent
TIMEOUT_S = 180
RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# Phase, finding, ranks.
FindingKey = tuple[str, str, tuple[int, ...]]


class SmokeRun:
    """A finished smoke test: its exit, its lines and its report."""

    def __init__(self, out: Path, status: int, stdout: str, stderr: str) -> None:
        self.out = out
        self.status = status
        self.lines = stdout.splitlines()
        self.stderr = stderr
        self.report = model.loads((out / "report.json").read_text())
        self.phases = {phase.name: phase for phase in self.report.phases}
        self.failed = [phase.name for phase in self.report.phases if phase.verdict == model.FAIL]

    @property
    def findings(self) -> set[FindingKey]:
        return {
            (phase.name, finding.id, tuple(finding.ranks))
            for phase in self.report.phases
            for finding in phase.findings
        }

    def message(self, id: str) -> str:
        return next(
            finding.message
            for phase in self.report.phases
            for finding in phase.findings
            if finding.id == id
        )


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}


def smoke(
    out: Path, *arguments: str, program: tuple[str, ...] = (), folder: Path = FOLDER
) -> SmokeRun:
    """On two Gloo ranks, quickly, unless the arguments say otherwise."""
    usual = ["--out", str(out), "--profile", "quick", "--ranks", "2", "--backend", "gloo"]
    command = [PYTHON, *program, str(folder), "smoke", *usual, *arguments]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(),
        cwd="/",
        check=False,
    )
    assert left_over(out) == []
    return SmokeRun(out, result.returncode, result.stdout, result.stderr)


def left_over(out: Path) -> list[str]:
    """Commands of processes that still name this run's folder; they get a moment to be reaped."""
    end = time.monotonic() + 5
    while (commands := processes_of(out)) and time.monotonic() < end:
        time.sleep(0.05)
    return commands


def processes_of(out: Path) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if str(out).encode() in arguments:
            commands.append(b" ".join(arguments).decode())
    return commands
