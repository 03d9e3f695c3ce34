"""The reporter, the launcher, the clocks and small phases of the smoke test."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.facts import libraries
from provision_runtime.report import model
from provision_runtime.smoke import (
    launched_ranks,
    launcher,
    measurement,
    options,
    outcome,
    phases,
    postmortem,
    reporter,
    runner,
)
from provision_runtime.smoke.phases import barrier, rendezvous
from tests import evidence
from tests.unit.runtime.smoke.builders import parsed, rank_env


@pytest.mark.parametrize(
    ("skews", "bound_s", "ranks"),
    [
        ([0, 0.2, -0.9], 0.01, []),
        ([0, 30], 0.01, [1]),
        ([0, 30, 30, 30], 0.01, [0]),
        ([0, 0, -5], 0.01, [2]),
        ([0, 5], 10, []),
    ],
)
def test_clock_skew_is_relative_to_the_majority(
    skews: list[float], bound_s: float, ranks: list[int]
) -> None:
    findings = rendezvous.skew_findings(skews, bound_s)
    assert [finding.ranks for finding in findings] == [(rank,) for rank in ranks]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.2.2", False),
        ("2.3.1+cu121", True),
        ("2.5.1", True),
        ("2.6.0", False),
        ("2.7.0+cu128", False),
        ("2.7.1", True),
        ("2.13.0+cpu", True),
    ],
)
def test_torch_releases_that_hang_get_no_device_id(version: str, expected: bool) -> None:
    assert rendezvous.takes_device_id(version) is expected


def report_with(*finished: model.ReportedPhase, duration_s: float = 0.0) -> model.Report:
    phases = reporter.with_pending(finished, options.PHASES)
    return model.Report("", duration_s, "gloo", "cpu", 2, ["node1"], "quick", [], {}, phases)


def test_unfinished_report_is_unknown() -> None:
    unfinished = report_with()
    assert unfinished.verdict == "unknown"
    assert reporter.first_pending(unfinished) == "facts"
    assert [phase.name for phase in unfinished.phases] == list(options.PHASES)


@pytest.mark.parametrize(
    ("phase", "names"),
    [("barrier", options.PHASES), ("teardown", (*options.PHASES, "teardown"))],
)
def test_failure_is_inserted_in_phase_order(phase: str, names: tuple[str, ...]) -> None:
    stuck = outcome.with_finding("rank-stuck", "stuck", [1])
    failing, failed = reporter.with_failure(report_with(), phase, stuck, 1.0)
    assert (failing.verdict, failed.name) == ("fail", phase)
    assert tuple(reported.name for reported in failing.phases) == names


def test_launcher_reports_the_duration_of_the_phase_in_which_a_rank_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = model.ReportedPhase("facts", model.PASS, 12.0, "", {}, [])
    report = report_with(facts, duration_s=12.5)
    (tmp_path / reporter.REPORT_NAME).write_text(model.dumps(report))
    monkeypatch.setattr("provision_runtime.smoke.launcher.time.time", lambda: 1020.0)
    launched = SimpleNamespace(
        codes={0: -9, 1: 1},
        failures={0: "was ended by SIGKILL"},
        children={0: None, 1: None},
        oom_kills=0,
        ranks=2,
        started=1000.0,
    )
    assert launcher._conclude(parsed(out=tmp_path), launched, "") == 1  # type: ignore[arg-type]
    written = model.loads((tmp_path / reporter.REPORT_NAME).read_text())
    assert written.duration_s == 20.0
    assert [phase.duration_s for phase in written.phases[:3]] == [12.0, 7.5, 0.0]
    assert [finding.id for finding in written.phases[1].findings] == ["rank-died"]


def rank_runner(out: Path, rank: int = 0) -> runner.RankRunner:
    return runner.RankRunner(parsed(out=out), rank_env(rank), sys.stdout.fileno())


def test_each_phase_has_one_row_if_the_run_ends_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks_runner = rank_runner(tmp_path)
    of_facts = outcome.Outcome(data={"ranks": [], "collect_s": 0.0})
    ranks_runner._completed = [
        runner.CompletedPhase(phases.ALL[0], of_facts, 1.0),
        runner.CompletedPhase(phases.ALL[1], outcome.Outcome(), 1.0),
    ]

    def agree(completed: runner.CompletedPhase) -> tuple[outcome.Outcome, float]:
        if completed.phase.name == "rendezvous":  # the watchdog ends the run meanwhile
            ranks_runner._record_facts()
            raise SystemExit
        return completed.outcome, completed.duration_s

    monkeypatch.setattr(ranks_runner, "_agree", agree)
    with pytest.raises(SystemExit):
        ranks_runner._agree_on_completed()
    names = [phase.name for phase in ranks_runner._reporter.current.phases]
    assert names == list(options.PHASES)


@pytest.mark.parametrize(("phase", "failing"), [("rendezvous", "barrier"), ("ddp", "ddp")])
def test_rank_that_ends_between_two_phases_fails_the_next(
    tmp_path: Path, phase: str, failing: str
) -> None:
    report = rank_runner(tmp_path)._reporter
    for name in ("facts", "rendezvous"):
        report.record(name, outcome.Outcome(), 1.0)
    report.fail(phase, (outcome.Finding("rank-stuck", "stuck", (1,)),))
    written = model.loads((tmp_path / reporter.REPORT_NAME).read_text())
    failed = [reported.name for reported in written.phases if reported.verdict == "fail"]
    assert failed == [failing]


def test_the_terminal_shows_an_end_that_no_folder_takes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = rank_runner(tmp_path / "gone")._reporter
    with pytest.raises(FileNotFoundError):
        report.fail("barrier", (outcome.Finding("rank-stuck", "stuck", (1,)),))
    assert "fail     barrier" in capfd.readouterr().out


def test_one_rank_of_each_host_says_that_the_store_is_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks_runner = rank_runner(tmp_path, rank=1)
    context = ranks_runner._context
    context.all_gather = object()  # type: ignore[assignment]
    for rank in (0, 1):
        context.locations[rank] = postmortem.Location("barrier", f"n{rank}", [], "")
    lost = outcome.with_finding("store-lost", "gone", broken=True)
    ranks_runner._reporter.record("barrier", lost, 1.0)
    assert "rank 1: fail     barrier" in capfd.readouterr().out
    context.locations[0] = postmortem.Location("barrier", "n1", [], "")
    ranks_runner._reporter.record("ddp", lost, 1.0)
    assert capfd.readouterr().out == ""


def test_percentiles_use_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    for percent in (1, 50, 99, 100):
        assert measurement.percentile(values, percent) == percent
    assert measurement.percentile(values, 0) == 1
    assert measurement.percentile([3.0, 1.0], 99) == 3.0


def test_times_are_formatted() -> None:
    assert [measurement.format_time(value) for value in (12.4, 15_000)] == ["12 us", "15.0 ms"]


def test_slowest_rank_at_a_barrier_does_not_wait() -> None:
    times = ([100.0, 120.0, 110.0], [10.0, 12.0, 300.0])
    data = barrier.merge([outcome.Outcome(data={"times_usec": usec}) for usec in times]).data
    assert (data["slowest_rank"], data["p50_us"], data["max_us"]) == (1, 120.0, 300.0)


def test_rank_that_others_always_wait_for_is_slow() -> None:
    waits = [[50_000.0] * 20, [100.0] * 20, [50_100.0] * 20]
    assert [(finding.id, finding.ranks) for finding in barrier.slow_ranks(waits)] == [
        ("slow-rank", (1,))
    ]


@given(st.lists(st.permutations([100.0, 30_000.0, 40_000.0]), min_size=10, max_size=50))
def test_ranks_that_are_last_by_turns_are_not_slow(turns: list[list[float]]) -> None:
    by_rank = [list(times) for times in zip(*turns)]
    last = max(sum(turn[rank] == 100.0 for turn in turns) for rank in range(3))
    assert bool(barrier.slow_ranks(by_rank)) == (last >= barrier.LAST_SHARE * len(turns))


def test_process_exits_are_formatted() -> None:
    assert launched_ranks.describe_exit(-9) == "was ended by SIGKILL"
    assert launched_ranks.describe_exit(3) == "ended with status 3"


@pytest.mark.parametrize(
    ("gpus", "backend", "expected"), [(0, "auto", 2), (8, "auto", 8), (8, "gloo", 2)]
)
def test_default_ranks(
    monkeypatch: pytest.MonkeyPatch, gpus: int, backend: str, expected: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(libraries, "usable_gpus", lambda: gpus)
    assert launcher.default_ranks(backend) == expected


@pytest.mark.parametrize(
    ("verdict", "codes", "expected"),
    [
        ("pass", {0: 0, 1: 0}, 0),
        ("warn", {0: 0, 1: 0}, 0),
        ("fail", {0: 1, 1: 1}, 1),
        ("fail", {0: 0, 1: 0}, 1),
        ("unknown", {0: 0, 1: 0}, 1),
    ],
)
def test_exit_code_of_the_launcher_follows_report_and_ranks(
    tmp_path: Path, verdict: str, codes: dict[int, int], expected: int
) -> None:
    phases = [evidence.phase(name, verdict=verdict) for name in options.PHASES]
    report = evidence.report(*phases)
    (tmp_path / reporter.REPORT_NAME).write_text(json.dumps(report))
    launched = SimpleNamespace(codes=codes, failures={}, ranks=2, started=0.0)
    assert launcher._conclude(parsed(out=tmp_path), launched, "") == expected  # type: ignore[arg-type]


def test_the_launcher_removes_an_earlier_runs_report(tmp_path: Path) -> None:
    (tmp_path / reporter.REPORT_NAME).write_text("{}")
    (tmp_path / "rank0.log").write_text("")
    launcher._prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []
