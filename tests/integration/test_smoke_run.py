"""The smoke test for real: two Gloo ranks over loopback, clean and with each fault injected."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from provision import report
from provision.core.schema import SCHEMAS
from provision_runtime.report import model
from provision_runtime.smoke.options import PHASES
from tests.integration.short_folders import short_folder
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    SmokeRun,
    environment,
    left_over,
    smoke,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch

# Patience with a busy machine: what matters here is that it ends; how soon is a benchmark's business.
BEYOND_DEADLINE_S = 60
DEADLINE_S = 4


@functools.cache
def facts() -> dict[str, Any]:
    result = subprocess.run(
        [PYTHON, str(FOLDER), "facts"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    """A folder for temporary files, with a path short enough for sockets."""
    with short_folder("smoke") as folder:
        yield folder


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory: pytest.TempPathFactory, temporary: Path) -> SmokeRun:
    folder = tmp_path_factory.mktemp("clean")
    return smoke(folder / "out 'of' here", TMPDIR=str(temporary))


def test_clean_run_passes_and_reports_measurements(clean_run: SmokeRun, temporary: Path) -> None:
    run = clean_run
    assert list(temporary.iterdir()) == []
    assert (run.status, run.report.verdict, run.stderr) == (0, "pass", "")
    assert [line.split()[:2] for line in run.lines] == [["pass", phase] for phase in PHASES]
    assert run.findings == set()
    assert (run.report.backend, run.report.device, run.report.world_size) == ("gloo", "cpu", 2)
    assert run.phases["barrier"].data["count"] == 50
    for row in run.phases["collectives"].data["rows"]:
        assert row["wrong"] == 0
        assert row["busbw_gb_s"] == row["algbw_gb_s"] > 0
    assert run.phases["ddp"].data["gradients"]["max_abs_diff"] < 1e-6
    assert sorted(path.name for path in run.out.iterdir()) == [
        "rank0.log",
        "rank1.log",
        "report.json",
    ]


def test_measurements_appear_on_the_page_and_fit_the_schema(clean_run: SmokeRun) -> None:
    schema = json.loads((SCHEMAS / "smoke-report.schema.json").read_text())
    path = clean_run.out / "report.json"
    Draft202012Validator(schema).validate(json.loads(path.read_text()))

    values: Any = report.template_values(report.build_page([report.load(path)]))
    [(label, rows)] = values["curves"]["all_reduce"].items()
    assert label.endswith("float32") and len(rows) >= 3
    assert all(row["busbw_gb_s"] is not None and row["time_us_max"] > 0 for row in rows)


@pytest.mark.exhaustive
def test_single_rank_has_no_bus_bandwidth(tmp_path: Path) -> None:
    run = smoke(tmp_path, "--ranks", "1", "--backend", "gloo")
    assert (run.status, run.report.verdict) == (0, "pass")
    assert {row["busbw_gb_s"] for row in run.phases["collectives"].data["rows"]} == {None}


@pytest.mark.exhaustive
def test_expectations_that_match_pass(tmp_path: Path) -> None:
    torch = facts()["torch"]
    expected = ["--expect-torch", torch["version"], "--expect-cuda", torch["cuda"] or "none"]
    if torch["nccl"]["loaded"]:
        expected += ["--expect-nccl", torch["nccl"]["loaded"]]
    run = smoke(tmp_path, *expected)
    assert (run.status, run.failed) == (0, [])
    is_rehearsal = torch["cuda"] is not None and not torch["cuda_available"]
    assert run.phases["facts"].data["rehearsal"] is is_rehearsal
    assert ("rehearsal on Gloo/CPU" in run.phases["facts"].message) is is_rehearsal


@pytest.mark.exhaustive
def test_unmet_expectation_fails_with_a_message(tmp_path: Path) -> None:
    expected = ("--expect-torch", "0.1", "--expect-cuda", "9.9", "--require-gpu")
    run = smoke(tmp_path, "--only", "facts", "--ranks", "1", "--backend", "auto", *expected)
    assert (run.status, run.failed) == (1, ["facts"])
    message = run.phases["facts"].message
    assert "but 0.1 was expected" in message
    assert "but 9.9 was expected" in message
    torch = run.report.facts["torch"]
    assert ("GPU is required" in message) is not torch["cuda_available"]


@pytest.mark.exhaustive
def test_nccl_without_a_gpu_is_refused_without_falling_back_to_gloo(tmp_path: Path) -> None:
    if facts()["torch"]["cuda_available"]:
        pytest.skip("there is a GPU here")
    run = smoke(tmp_path, "--backend", "auto", "--backend", "nccl")
    assert (run.status, run.failed) == (1, ["facts", "rendezvous"])
    assert "NCCL needs a GPU" in run.phases["facts"].message


@pytest.mark.exhaustive
def test_run_timeout_ends_the_run(tmp_path: Path) -> None:
    """On a busy machine the time may end before rank 0 waits for the one that hangs: then the run
    gets more of it. Phases always have more than the run."""
    for seconds in (10, 20, 40, 80):
        limits = ["--timeout", str(seconds)]
        for phase in ("facts", "rendezvous"):
            limits += ["--deadline", f"{phase}={seconds * 10}"]
        run = smoke(tmp_path / str(seconds), "--inject", "hang:1:facts", *limits)
        assert run.status == 1
        if run.findings == {("facts", "rank-stuck", (1,))}:
            break
    assert run.findings == {("facts", "rank-stuck", (1,))}
    assert "before the time of the whole run" in run.message("rank-stuck")


@pytest.mark.exhaustive
def test_facts_survive_a_failed_rendezvous(tmp_path: Path) -> None:
    run = smoke(tmp_path, "--inject", "hang:1:rendezvous", "--deadline", "rendezvous=8")
    assert run.status == 1
    assert run.failed == ["rendezvous"]
    assert [row["rank"] for row in run.phases["facts"].data["ranks"]] == [0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_all_ranks_with_a_report(tmp_path: Path, number: signal.Signals) -> None:
    with hanging_in_barrier(tmp_path) as child:
        child.send_signal(number)
        assert child.wait(BEYOND_DEADLINE_S) == 1
    assert f"ended by {number.name}: " in message_of_barrier(tmp_path)


def test_killed_launcher_ends_its_ranks_without_a_success(
    tmp_path: Path,
) -> None:
    with hanging_in_barrier(tmp_path) as child:
        child.kill()
        child.wait(BEYOND_DEADLINE_S)
    assert model.loads((tmp_path / "report.json").read_text()).verdict == "unknown"


def test_stopped_rank_is_named_and_ended(tmp_path: Path) -> None:
    run = smoke(tmp_path, "--inject", "stop:1:barrier", "--deadline", f"barrier={DEADLINE_S}")
    assert (run.status, run.failed) == (1, ["barrier"])
    assert "rank 1: its process is stopped, last in barrier" in run.phases["barrier"].message


@contextmanager
def hanging_in_barrier(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A run whose rank 1 hangs in barrier. Nothing of it may be left when the test is done with it."""
    command = ["smoke", "--out", str(out), "--inject", "hang:1:barrier"]
    with subprocess.Popen(
        [PYTHON, str(FOLDER), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as child:
        try:
            assert child.stdout is not None
            assert any(line.split()[:2] == ["pass", "rendezvous"] for line in child.stdout)
            yield child
        finally:
            child.kill()
    assert left_over(out) == []


def message_of_barrier(out: Path) -> str:
    written = model.loads((out / "report.json").read_text())
    assert written.verdict == "fail"
    return next(phase.message for phase in written.phases if phase.name == "barrier")
