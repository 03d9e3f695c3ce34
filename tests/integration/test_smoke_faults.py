"""Every injectable fault is reported by its id, in its phase, on its ranks, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from provision_runtime.smoke import options
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    TIMEOUT_S,
    FindingKey,
    SmokeRun,
    environment,
    left_over,
    patient,
    rank_process,
    slowness,
    smoke,
)

pytestmark = pytest.mark.torch

BOTH = (0, 1)
# What the user types after --inject, more options, and what must be found. Faults that end a run have one of their own.
ENDING: list[tuple[str, str, FindingKey]] = [
    ("die:1:facts", "--only rendezvous", ("facts", "rank-died", (1,))),
    ("die:1:rendezvous", "--only rendezvous", ("rendezvous", "rank-died", (1,))),
    ("die:0:barrier", "--only barrier", ("barrier", "rank-died", (0,))),
    ("raise:0:collectives", "--only collectives", ("collectives", "backend-error", (0,))),
    ("raise:1:ddp", "--only ddp", ("ddp", "backend-error", (1,))),
    ("stop:0:facts", "--deadline rendezvous=4", ("facts", "rank-stopped", (0,))),
    ("stop:1:facts", "--deadline rendezvous=4", ("facts", "rank-stopped", (1,))),
    ("hang:1:rendezvous", "--deadline rendezvous=4", ("rendezvous", "rank-stuck", (1,))),
    ("absent:1", "--deadline rendezvous=4", ("rendezvous", "rank-missing", (1,))),
    ("busy-port", "--deadline rendezvous=6", ("rendezvous", "port-busy", (0,))),
    ("disk-full:1", "--only filesystem", ("filesystem", "disk-full", (1,))),
    ("unwritable:0", "--only filesystem", ("filesystem", "folder-unwritable", (0,))),
    ("unmounted:1", "--only checkpoint", ("checkpoint", "folder-unmounted", (1,))),
]
for phase in ("collectives", "compute", "ddp", "filesystem", "checkpoint"):
    ENDING.append((f"die:1:{phase}", f"--only {phase}", (phase, "rank-died", (1,))))
# These are found when the phase's time is up.
for fault, phase, seconds, id, ranks in (
    ("stop:0:barrier", "barrier", 4, "rank-stopped", (0,)),
    ("stop:1:collectives", "collectives", 4, "rank-stopped", (1,)),
    ("stop:1:ddp", "ddp", 4, "rank-stopped", (1,)),
    ("stop:1:filesystem", "filesystem", 4, "rank-stopped", (1,)),
    ("stop:1:checkpoint", "checkpoint", 4, "rank-stopped", (1,)),
    ("hang:0:collectives", "collectives", 4, "rank-stuck", (0,)),
    ("skip-barrier:1", "barrier", 4, "collective-skipped", (1,)),
    ("other-collective:1", "collectives", 6, "collective-mismatch", (1,)),
    ("unresolvable-master", "rendezvous", 12, "master-unresolvable", BOTH),
):
    ENDING.append((fault, f"--only {phase} --deadline {phase}={seconds}", (phase, id, ranks)))
# These leave the run going, so one run shows several.
LASTING: list[tuple[tuple[str, ...], set[FindingKey]]] = [
    (
        (
            *("other-torch:1", "clock-skew:1", "slow-rank:0"),
            *("wrong-value:1", "wrong-product:0", "wrong-shape:1", "flip-bit"),
        ),
        {
            ("facts", "environment-drift", BOTH),
            ("rendezvous", "clock-skew", (1,)),
            ("barrier", "slow-rank", (0,)),
            ("collectives", "wrong-value", (1,)),
            ("compute", "wrong-product", (0,)),
            ("ddp", "parameter-mismatch", BOTH),
            ("checkpoint", "checkpoint-damaged", BOTH),
        },
    ),
    (
        ("missing-parameter:0", "slow-folder:0"),
        {("ddp", "parameter-mismatch", BOTH), ("filesystem", "folder-slow", (0,))},
    ),
]


# One fault of each kind that no other test of CI causes; the others run in `nox -s exhaustive`.
# Below: a hang, another collective, a busy port. In test_smoke_run.py: a stopped rank. In
# test_smoke_folder.py: a rank that dies, a full disk.
IN_CI = {"raise:1:ddp", "skip-barrier:1"}


@pytest.mark.parametrize(
    ("fault", "arguments", "expected"),
    [
        pytest.param(*case, id=case[0], marks=() if case[0] in IN_CI else pytest.mark.exhaustive)
        for case in ENDING
    ],
)
def test_fatal_fault_is_named(
    tmp_path: Path, fault: str, arguments: str, expected: FindingKey
) -> None:
    run = smoke(tmp_path, "--inject", fault, *arguments.split())
    assert run.findings == {expected}, run.lines
    assert (run.status, run.failed) == (1, [expected[0]])


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        pytest.param(*LASTING[0], id="many"),
        pytest.param(*LASTING[1], id="two", marks=pytest.mark.exhaustive),
    ],
)
def test_nonfatal_faults_are_named(
    tmp_path: Path, faults: tuple[str, ...], expected: set[FindingKey]
) -> None:
    run = smoke(tmp_path, *(argument for fault in faults for argument in ("--inject", fault)))
    assert run.findings == expected, run.lines
    assert run.status == 1
    for id in {id for _, id, _ in expected}:
        assert any(id in line or run.message(id) in line for line in run.lines)


def test_every_fault_has_a_test() -> None:
    faults = [fault for fault, _, _ in ENDING] + [name for names, _ in LASTING for name in names]
    assert {fault.split(":")[0] for fault in faults} == set(options.FAULTS)
    # Watching differs between phases: in some a rank waits for the others, in some it does not.
    died_in = {expected[0] for fault, _, expected in ENDING if fault.startswith("die:")}
    assert died_in == set(options.PHASES)


def test_mismatch_reports_both_calls(tmp_path: Path) -> None:
    arguments = "--inject other-collective:1 --only collectives --deadline collectives=6"
    run = smoke(tmp_path, *arguments.split())
    message = run.message("collective-mismatch")
    assert "is broadcast" in message and "all_reduce" in message and "on rank 0" in message


@pytest.mark.exhaustive
def test_stuck_rank_leaves_its_stack_calls_and_place(tmp_path: Path) -> None:
    run = smoke(tmp_path, "--inject", "hang:1:barrier", "--deadline", "barrier=4")
    for rank, function in ((0, "in barrier\n"), (1, "time.sleep(60)")):
        last_state = json.loads((tmp_path / f"rank{rank}.last-state.json").read_text())
        assert last_state == run.phases["barrier"].data["last_states"][str(rank)]
        assert any(function in frame for frame in last_state["stack"])
        assert last_state["calls"][-1]["number"] == last_state["position"]["collectives"]


@pytest.mark.exhaustive
def test_owner_of_a_busy_port_is_named(tmp_path: Path) -> None:
    run = smoke(tmp_path, "--inject", "busy-port", "--deadline", "rendezvous=6")
    # The launcher itself listens there, with these arguments; long ones are cut.
    assert PYTHON[:40] in run.message("port-busy")
    assert str(tmp_path)[:60] in run.message("port-busy")


@pytest.mark.exhaustive
@pytest.mark.parametrize("rank", BOTH)
def test_rank_that_is_stopped_before_it_runs_is_named(tmp_path: Path, rank: int) -> None:
    """Before Python has begun; it cannot say where it is."""
    usual = ("--profile", "quick", "--ranks", "2", "--backend", "gloo")
    deadline = patient(["--deadline", "rendezvous=6"])
    command = [PYTHON, str(FOLDER), "smoke", "--out", str(tmp_path), *usual, *deadline]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as launcher:
        number = None
        while number is None:
            number = rank_process(tmp_path, rank)
        os.kill(number, signal.SIGSTOP)
        outputs = launcher.communicate(timeout=TIMEOUT_S * slowness())
    run = SmokeRun(tmp_path, launcher.returncode, *outputs)
    assert run.findings == {("facts", "rank-stopped", (rank,))}, run.lines
    assert left_over(tmp_path) == []
