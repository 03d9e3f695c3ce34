"""Probes run side by side; one that hangs, dies or fails costs only itself."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provision_runtime.doctor import account
from provision_runtime.doctor.catalog import PROBES
from provision_runtime.doctor.machine import Machine
from provision_runtime.doctor.probe import Limitation, Probe, Result, observation, observe
from provision_runtime.doctor.runner import diagnose
from provision_runtime.report import diagnosis as reports
from provision_runtime.report.findings import BY_AREA, CATALOG


def finds(machine: Machine) -> Iterator[Result]:
    yield observation("shm-small", "too small", "statvfs", 1)
    yield Limitation("root sees more", "sudo look")


def finds_only(machine: Machine) -> Iterator[Result]:
    yield observation("shm-small", "too small", "statvfs", 1)


def hangs(machine: Machine) -> Iterator[Result]:
    signal.pause()
    yield from ()


def dies(machine: Machine) -> Iterator[Result]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from ()


def fails(machine: Machine) -> Iterator[Result]:
    yield from ()
    raise ValueError("no such number")


def starts_a_child_that_hangs(machine: Machine) -> Iterator[Result]:
    if os.fork() == 0:
        signal.pause()
    os.wait()
    yield from ()


HEALTHY = Probe("healthy", ("shm-small",), finds)


@pytest.mark.parametrize(
    ("probe", "id", "words"),
    [
        (Probe("hanging", (), hangs, deadline_s=0.2), "probe-late", "no result within 0.2 s"),
        (Probe("waiting", (), starts_a_child_that_hangs, deadline_s=0.2), "probe-late", ""),
        (Probe("dying", (), dies), "probe-failed", "was killed"),
        (Probe("failing", (), fails), "probe-failed", "ValueError: no such number"),
        (Probe("undeclared", (), finds), "probe-failed", "AssertionError: shm-small"),
    ],
)
def test_a_probe_that_gives_no_answer_costs_only_itself(probe: Probe, id: str, words: str) -> None:
    result = diagnose(Machine(), [probe, HEALTHY])
    assert [finding["id"] for finding in result["findings"]] == [id, "shm-small"]
    assert probe.name in result["findings"][0]["message"]
    assert words in result["findings"][0]["message"]
    assert result["verdict"] == "fail"
    assert result["notes"] == [["root sees more", "sudo look"]]


def test_half_an_answer_costs_only_its_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a probe that is killed while it writes."""
    whole = json.dumps

    def dumps(answer: dict[str, object]) -> str:
        return whole(answer)[: 20 if answer["notes"] else None]

    monkeypatch.setattr("json.dumps", dumps)
    result = diagnose(Machine(), [HEALTHY, Probe("quiet", ("shm-small",), finds_only)])
    assert [finding["id"] for finding in result["findings"]] == ["probe-failed", "shm-small"]


def test_several_that_hang_are_one_finding() -> None:
    probes = [Probe(name, (), hangs, deadline_s=0.2) for name in ("first", "second")]
    result = diagnose(Machine(), probes)
    assert [finding["message"] for finding in result["findings"]] == [
        "no result within 0.2 s: first, second"
    ]


def test_several_that_fail_for_one_reason_are_one_finding() -> None:
    probes = [Probe(name, (), dies) for name in ("first", "second")]
    result = diagnose(Machine(), [*probes, Probe("third", (), fails)])
    assert [finding["message"] for finding in result["findings"]] == [
        "no result from first, second: its process was killed",
        "no result from third: ValueError: no such number",
    ]
    assert result["probes"] == 3


def test_a_broken_null_device_costs_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.devnull", "/nonexistent/null")
    assert [finding["id"] for finding in diagnose(Machine(), [HEALTHY])["findings"]] == [
        "shm-small"
    ]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.touch(0o666), "is not the null device"),
        (lambda path: None, "No such file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not the null device"),
        (lambda path: path.symlink_to("/dev/null"), ""),
    ],
)
def test_what_is_wrong_with_a_null_device(
    make: Callable[[Path], None], problem: str, tmp_path: Path
) -> None:
    make(tmp_path / "null")
    text = account.null_device_problem(str(tmp_path / "null"))
    assert problem in text and bool(text) == bool(problem)


def test_probes_run_side_by_side() -> None:
    """Two that end only when the other has started."""
    first_reading, first_writing = os.pipe()
    second_reading, second_writing = os.pipe()

    def meet(writing: int, reading: int) -> Probe:
        def run(machine: Machine) -> Iterator[Result]:
            os.write(writing, b"x")
            os.read(reading, 1)
            yield from ()

        return Probe(f"meeting {writing}", (), run, deadline_s=10.0)

    probes = [meet(first_writing, second_reading), meet(second_writing, first_reading)]
    assert diagnose(Machine(), probes)["findings"] == []
    for descriptor in (first_reading, first_writing, second_reading, second_writing):
        os.close(descriptor)


def test_what_a_hanging_probe_started_is_ended() -> None:
    probe = Probe("waiting", (), starts_a_child_that_hangs, deadline_s=0.2)
    diagnose(Machine(), [probe])
    deadline = time.monotonic() + 10
    while _children() and time.monotonic() < deadline:
        pass
    assert not _children()


def _children() -> bool:
    """Whether this process has children that are not zombies."""
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def test_a_probe_reports_only_what_it_declares() -> None:
    with pytest.raises(AssertionError, match="shm-small"):
        observe(Probe("other", (), finds), Machine())


def test_every_finding_of_doctor_has_a_probe_and_says_all() -> None:
    declared = {id for probe in PROBES for id in probe.ids}
    declared |= {*BY_AREA["scripts"], *BY_AREA["probes"]}
    registered = {id for rules in BY_AREA.values() for id in rules}
    assert registered - declared == set()
    assert declared - set(CATALOG) == set()
    for id in declared - set(BY_AREA["probes"]):
        rule = CATALOG[id]
        assert rule.breaks and rule.command, id


def test_no_finding_has_two_probes() -> None:
    ids = [id for probe in PROBES for id in probe.ids]
    repeated = {id for id in ids if ids.count(id) > 1}
    assert repeated == set()


def test_verdicts_become_exit_codes() -> None:
    codes = {verdict: reports.exit_code(verdict) for verdict in ("pass", "warn", "fail", "unknown")}
    assert codes == {"pass": 0, "warn": 0, "fail": 1, "unknown": 1}
