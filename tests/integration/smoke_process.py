"""The smoke test as a process, for the tests that start it: its exit, its lines, its report, and nothing left running."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import provision_runtime
from provision_runtime.report import model

PYTHON = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
FOLDER = Path(str(provision_runtime.__file__)).parent
TIMEOUT_S = 180
# `import torch` with byte code, 2 cores: 1.7 to 2.0 s.
QUIET_START_S = 2.0
MAX_SLOWNESS = 10.0
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


def findings_of(report: model.Report) -> set[FindingKey]:
    return {
        (phase.name, finding.id, tuple(finding.ranks))
        for phase in report.phases
        for finding in phase.findings
    }


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
        return findings_of(self.report)

    def message(self, id: str) -> str:
        return next(
            finding.message
            for phase in self.report.phases
            for finding in phase.findings
            if finding.id == id
        )


@functools.cache
def slowness() -> float:
    """How many times longer a rank takes to start now than on a quiet machine; 1 if not longer."""
    start = time.monotonic()
    subprocess.run([PYTHON, "-c", "import torch"], check=True, capture_output=True)
    return min(max(1.0, (time.monotonic() - start) / QUIET_START_S), MAX_SLOWNESS)


def patient(arguments: Sequence[str]) -> list[str]:
    """Arguments of a smoke test, their deadlines as many times longer as this machine is slower."""
    result: list[str] = []
    for argument in arguments:
        option = result[-1] if result else ""
        if option == "--deadline":
            phase, _, seconds = argument.partition("=")
            argument = f"{phase}={float(seconds) * slowness():.0f}"
        elif option == "--timeout":
            argument = f"{float(argument) * slowness():.0f}"
        result.append(argument)
    return result


def environment() -> dict[str, str]:
    foreign = (*RANK_VARIABLES, "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in foreign}


def variables_of(rank: int, port: int) -> dict[str, str]:
    """The variables of one of two ranks of this host that are started apart."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    return {**shared, "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}


def smoke(
    out: Path,
    *arguments: str,
    program: tuple[str, ...] = (),
    folder: Path = FOLDER,
    **variables: str,
) -> SmokeRun:
    """On two Gloo ranks, quickly, unless the arguments say otherwise; with these variables."""
    usual = ["--out", str(out), "--profile", "quick", "--ranks", "2", "--backend", "gloo"]
    command = [PYTHON, *program, str(folder), "smoke", *usual, *patient(arguments)]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S * slowness(),
        env={**environment(), **variables},
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


def rank_process(out: Path, rank: int) -> int | None:
    """The process of a rank of the run with this folder; None before it starts."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if str(out).encode() in arguments and f"RANK={rank}".encode() in variables:
            return int(folder.name)
    return None


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
