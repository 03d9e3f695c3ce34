"""The host's side of the smoke test: its options, and which reports are trusted.

The sample report is the contract with provision_runtime/report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision import resolver
from provision.cli.smoke_output import smoke_lines
from provision.core.errors import CheckFailed, InvalidSpec
from provision.resolver import spec
from provision.workflow.smoke import request as smoke_requests
from provision.workflow.smoke import runner as smoke_runner
from provision.workflow.smoke.request import with_settings
from provision_runtime.smoke import options
from provision_runtime.smoke.options import PHASES
from tests import evidence
from tests.paths import DATA

SAMPLE = DATA / "smoke-report.json"


def report(folder: Path, **changes: Any) -> Path:
    (folder / smoke_runner.REPORT).write_text(
        json.dumps({**json.loads(SAMPLE.read_text()), **changes})
    )
    return folder


def one_phase(verdict: str) -> dict[str, Any]:
    return {"verdict": verdict, "phases": [evidence.phase(verdict=verdict)]}


def test_sample_is_read(tmp_path: Path) -> None:
    result = smoke_runner.read_report(report(tmp_path), "prefix", 0, "")
    assert result.verdict == "warn"
    assert smoke_runner.failures([result]) == []
    assert [phase["name"] for phase in result.report["phases"]] == list(PHASES)


@pytest.mark.parametrize("changes,status,verdict", [
    ({}, 1, "unknown"),
    (one_phase("fail"), 1, "fail"),
    (one_phase("unknown"), 1, "unknown"),
    (one_phase("splendid"), 0, "unknown"),
    ({"schema": 99}, 0, "unknown"),
    (one_phase("warn"), 0, "warn"),
    (one_phase("pass"), 0, "pass"),
    ({**one_phase("fail"), "verdict": "pass"}, 0, "unknown"),
    ({**one_phase("pass"), "verdict": "fail"}, 1, "unknown"),
])  # fmt: skip
def test_only_a_consistent_pass_passes(
    tmp_path: Path, changes: dict[str, Any], status: int, verdict: str
) -> None:
    result = smoke_runner.read_report(report(tmp_path, **changes), "image", status, "")
    assert result.verdict == verdict
    assert bool(smoke_runner.failures([result])) == (verdict not in ("pass", "warn"))


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]x", "[]", "null", "2", '"pass"', "[" * 100_000]
)
def test_missing_report_is_not_a_pass(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / smoke_runner.REPORT).write_text(content)
    with pytest.raises(
        CheckFailed, match=r"ended with status 139 and left no report: Segmentation fault"
    ):
        smoke_runner.read_report(tmp_path, "prefix", 139, "Segmentation fault\n")


BROKEN: list[dict[str, Any]] = [
    {"verdict": ...},
    {"phases": ...},
    {"phases": None},
    {"phases": ["barrier"]},
    {"phases": [{"name": "barrier", "verdict": "pass"}]},
    {"phases": [evidence.phase(findings=["rank-stuck"])]},
    {"hosts": ...},
    {"schema": ...},
    {"kind": "passport"},
    {"verdict": "pass"},
]


@pytest.mark.parametrize("changes", BROKEN)
def test_malformed_report_is_unknown_everywhere(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = {**json.loads(SAMPLE.read_text()), **changes}
    (tmp_path / smoke_runner.REPORT).write_text(
        json.dumps({key: value for key, value in whole.items() if value is not ...})
    )
    result = smoke_runner.read_report(tmp_path, "prefix", 0, "")
    assert result.verdict == "unknown"
    (failure,) = smoke_runner.failures([result])
    assert failure.startswith("prefix: report: not a smoke report of schema 2: ")
    assert smoke_lines(result)[0].startswith("smoke test in the prefix: unknown")


def test_a_broken_report_names_entry_and_field(tmp_path: Path) -> None:
    phases = [{"name": "barrier", "verdict": "pass"}]
    result = smoke_runner.read_report(report(tmp_path, phases=phases), "prefix", 0, "")
    (failure,) = smoke_runner.failures([result])
    assert "phases[0] (barrier)" in failure and "is a required property" in failure


def test_failed_phase_is_named(tmp_path: Path) -> None:
    finding = {"id": "rank-stuck", "verdict": "fail", "ranks": [1], "message": "", "advice": "See."}
    phases = [evidence.phase(verdict="fail", message="rank 1 did not arrive", findings=[finding])]
    folder = report(tmp_path, verdict="fail", phases=phases)
    result = smoke_runner.read_report(folder, "image", 1, "")
    sentence = "image: barrier: rank 1 did not arrive (rank-stuck). See."
    assert smoke_runner.failures([result]) == [sentence]


def argv_of(request: smoke_requests.SmokeRequest, **build: Any) -> str:
    resolution = resolver.resolve(spec.combine({}, build, name=""))
    return " ".join(smoke_requests.arguments(resolution, request))


def test_arguments_contain_the_locked_expectations() -> None:
    argv = argv_of(smoke_requests.SmokeRequest(), torch="2.3", cuda="12.1")
    assert "--expect-torch 2.3.1+cu121 --expect-cuda 12.1 --expect-nccl 2.20.5" in argv
    cpu = argv_of(smoke_requests.SmokeRequest(), torch="2.13", cpu=True)
    assert "--expect-cuda none" in cpu and "--expect-nccl" not in cpu


def test_every_option_of_a_request_is_passed_on() -> None:
    request = smoke_requests.SmokeRequest(
        ranks=4,
        profile="full",
        only=("barrier", "ddp"),
        skip=("compute",),
        inject=("clock-skew:1",),
        deadlines=("5",),
        strict=True,
    )
    argv = argv_of(request, torch="2.13", cpu=True)
    assert "--profile full --only barrier --only ddp" in argv
    assert "--skip compute --strict --timeout 600.0 --deadline 5 --inject clock-skew:1" in argv


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"only": ("lunch",)}, "the setting only: invalid choice: 'lunch'"),
        ({"skip": ("facts",)}, "the setting skip facts"),
        ({"inject": ("explode",)}, "no such fault: 'explode'; there are absent:RANK"),
        ({"skip": ("ddp",), "inject": ("die:1:ddp",)}, "the setting inject die: ddp"),
        ({"ranks": 2, "inject": ("die:2:ddp",)}, "there is no rank 2 among 2"),
    ],
)
def test_contradicting_options_are_refused_before_the_run(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        smoke_requests.check(smoke_requests.SmokeRequest(**fields))


@pytest.mark.parametrize("ranks", [3, None])  # None: the machine decides
def test_a_fault_of_an_existing_rank_is_accepted(ranks: int | None) -> None:
    smoke_requests.check(smoke_requests.SmokeRequest(ranks=ranks, inject=("die:2:ddp",)))


def test_host_and_runtime_have_the_same_default_timeout() -> None:
    assert smoke_requests.SmokeRequest().timeout_s == options.parse(["--out", "."]).timeout_s


def test_settings_fill_what_a_request_leaves_open() -> None:
    texts = "ranks=4 backend=gloo device=cpu profile=full only=ddp,barrier skip=compute"
    texts += " require_gpu=true strict=true timeout=30 deadline=5,ddp=9 folder=a"
    filled = with_settings(smoke_requests.SmokeRequest(ranks=2), texts.split())
    assert filled == smoke_requests.SmokeRequest(
        ranks=2,
        backend="gloo",
        device="cpu",
        profile="full",
        only=("ddp", "barrier"),
        skip=("compute",),
        require_gpu=True,
        strict=True,
        timeout_s=30.0,
        deadlines=("5", "ddp=9"),
        folder=Path("a"),
    )


@pytest.mark.parametrize("text", ["rank=4", "ranks=four", "strict=yes", "timeout=soon"])
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        with_settings(smoke_requests.SmokeRequest(), [text])


@pytest.mark.parametrize("text", ["backend=mpi", "profile=long", "device=tpu", "timeout=-1"])
def test_the_smoke_test_judges_the_values_of_settings(text: str) -> None:
    with pytest.raises(InvalidSpec):
        smoke_requests.check(with_settings(smoke_requests.SmokeRequest(), [text]))


def test_smoke_tests_own_refusal_is_passed_on(tmp_path: Path) -> None:
    """Only the test knows how many ranks there are without `--ranks`."""
    command = [sys.executable, str(smoke_runner.RUNTIME), "smoke", "--out", str(tmp_path)]
    command += ["--backend", "gloo", "--inject", "die:7:ddp"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    with pytest.raises(InvalidSpec, match=r"options: --inject die: there is no rank 7 among 2\.$"):
        smoke_runner.read_report(tmp_path, "prefix", ran.returncode, ran.stdout + ran.stderr)


def test_earlier_report_is_not_reused(tmp_path: Path) -> None:
    smoke_runner.remove_old_report(report(tmp_path))
    with pytest.raises(CheckFailed, match="left no report"):
        smoke_runner.read_report(tmp_path, "prefix", 2, "")


def test_the_host_waits_little_longer_than_the_smoke_test() -> None:
    """The smoke test ends itself; the host's own deadline is only for a Python that cannot start."""
    assert smoke_runner.STARTING_S <= smoke_requests.TIMEOUT_S
