"""Prefix (or image) -> smoke report: starts the test that lives in `inside/` with the environment's own interpreter and reads
its report. Nothing of torch is imported here; the report is the only thing believed, and no report is not a pass."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

from provision.core.errors import CheckFailed, InvalidSpec
from provision.core.process import clean_environment, run
from provision.core.types import Place, Prefix, Resolution, SmokeResult, Verdict
from provision_runtime.report import model as reports
from provision_runtime.report.junit import dumps
from provision_runtime.smoke import options
from provision_runtime.smoke.bandwidth import baseline

RUNTIME = Path(str(files("provision_runtime")))
REPORT = "report.json"
# The host's own deadline on top of the test's: starting Python and importing torch twice on a cold disk.
STARTING_S = 120.0
# What the test ends with where its own options make no sense: argparse's.
USAGE = 2
# The phase in which it is said why a report is not believed.
DOUBT = "report"


@dataclass(frozen=True, kw_only=True)
class SmokeRequest:
    """How to test: number of ranks (None: one per GPU, two without), backend, device, profile, phases, faults to rehearse, and the deadline
    for the whole test in seconds.

    out: folder for all that the test leaves (None: in the data folder). folder: where files and checkpoints are tested (None: in
    `out`). expect: curves of expected bandwidth. baseline: save this run's bandwidths, or compare with those that were saved.
    """

    ranks: int | None = None
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    quick: bool = False
    full: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    require_gpu: bool = False
    inject: tuple[str, ...] = ()
    timeout_s: float = options.TIMEOUT_S
    out: Path | None = None
    folder: Path | None = None
    expect: Path | None = None
    baseline: Literal["save", "compare"] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is a test of the environment, and not of a part of it or of the test itself."""
        return not (self.only or self.skip or self.inject)

    @property
    def profile(self) -> str:
        return "quick" if self.quick else "full" if self.full else "default"


def check(request: SmokeRequest) -> None:
    """Raises InvalidSpec for options that contradict one another, before anything runs."""
    if request.quick and request.full:
        raise InvalidSpec("--quick and --full: only one of them.")
    if request.expect is not None and not request.expect.is_file():
        raise InvalidSpec(f"--expect {request.expect}: there is no such file.")
    unknown = [phase for phase in (*request.only, *request.skip) if phase not in options.PHASES]
    if unknown:
        raise InvalidSpec(f"There is no phase {unknown[0]}; there are {', '.join(options.PHASES)}.")
    try:
        if request.expect is not None:
            options.curves(request.expect)
        left_out = options.skipped(request.only, request.skip)
        faults = [options.parse_fault(text) for text in request.inject]
        options.refuse_what_proves_nothing(
            left_out, faults, baseline_wanted=request.baseline is not None
        )
        if request.ranks is not None:
            options.refuse_faults_of_nobody(faults, request.ranks)
    except options.UsageError as error:
        raise InvalidSpec(f"{error}.") from error


def check_baseline(path: Path) -> None:
    """Raises InvalidSpec for a file that is no baseline any more, before anything runs."""
    try:
        baseline.load(path)
    except baseline.BaselineUnreadable as error:
        raise InvalidSpec(
            f"--baseline compare: {error}.",
            advice="`--baseline save`, on a day when all is well, replaces it.",
        ) from error


def arguments(resolution: Resolution, request: SmokeRequest) -> list[str]:
    """The test's own options: what to do, and what the lock promised of this environment. Without files: see `in_prefix`."""
    argv = [
        "--backend",
        request.backend,
        "--device",
        request.device,
        "--timeout",
        f"{request.timeout_s:g}",
        "--profile",
        request.profile,
    ]
    argv += ["--ranks", str(request.ranks)] if request.ranks else []
    argv += ["--expect-torch", resolution.local_version, "--expect-cuda", resolution.cuda or "none"]
    argv += ["--expect-nccl", resolution.nccl] if resolution.nccl else []
    argv += ["--require-gpu"] if request.require_gpu else []
    many = (("--only", request.only), ("--skip", request.skip), ("--inject", request.inject))
    return argv + [word for flag, values in many for value in values for word in (flag, value)]


def in_prefix(
    prefix: Prefix,
    resolution: Resolution,
    request: SmokeRequest,
    env: Mapping[str, str],
    out: Path,
    kept: Path,
) -> SmokeResult:
    """Run the smoke test in a prefix. env: the prefix's activation. out: folder for what it leaves; an earlier report there goes. kept: the
    file of the baseline."""
    command = [
        str(prefix.python),
        str(RUNTIME),
        "smoke",
        "--out",
        str(out),
        *arguments(resolution, request),
    ]
    command += ["--checkpoint-dir", str(request.folder.absolute())] if request.folder else []
    command += ["--expect", str(request.expect.absolute())] if request.expect else []
    command += ["--baseline", f"{request.baseline}={kept}"] if request.baseline else []
    environment = clean_environment({**env, "PYTHONDONTWRITEBYTECODE": "1"})
    fresh(out)
    done = run(command, env=environment, timeout_s=request.timeout_s + STARTING_S, check=False)
    return read_report(out, "prefix", done.returncode, done.stdout + done.stderr)


def fresh(out: Path) -> None:
    """A folder without an earlier run's report, which would be taken for this one's."""
    out.mkdir(parents=True, exist_ok=True)
    (out / REPORT).unlink(missing_ok=True)


def read_report(folder: Path, where: Place, status: int, output: str) -> SmokeResult:
    """Read back what the test wrote. What is no report is CheckFailed, or InvalidSpec where the test refused its options. One of another
    shape, one whose verdict is not what its phases come to, and a status that contradicts it make the verdict unknown, never a pass."""
    try:
        text = (folder / REPORT).read_text(encoding="utf-8")
        document = _object(text)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        refusal = output.rpartition("error: ")[2].strip() if status == USAGE else ""
        if refusal:
            raise InvalidSpec(
                f"The smoke test in the {where} refused: {refusal}.", details=output
            ) from error
        tail = " ".join(output.split())[-600:]
        raise CheckFailed(
            f"The smoke test in the {where} ended with status {status} and left no report: {tail or 'it printed nothing'}.",
            advice=f"Run `provision smoke` with -v for its whole output; what it left is in {folder}.",
            details=output,
        ) from error
    try:
        verdict = reports.loads(text).verdict
    except reports.ReportUnreadable as error:
        document = {**reports.document(_unread(str(error))), "schema": document.get("schema")}
        verdict = reports.UNKNOWN
    if reports.succeeded(verdict) and status != 0:
        verdict = reports.UNKNOWN
    return SmokeResult(
        where=where, verdict=cast("Verdict", verdict), report=document, evidence=folder
    )


def _object(text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError(f"{REPORT} is JSON, but no object")
    return document


def _unread(doubt: str) -> reports.Report:
    """All that can be said of a report that is not believed; the file itself stays in the evidence."""
    return reports.Report(
        started_at="",
        duration_s=0.0,
        backend="unknown",
        device="unknown",
        world_size=0,
        hosts=[],
        profile="unknown",
        skipped=[],
        facts={},
        phases=[reports.Phase(DOUBT, reports.UNKNOWN, 0.0, doubt, {}, [])],
    )


def failures(results: Sequence[SmokeResult]) -> list[str]:
    """One sentence for each phase that did not pass, and for each result that is not success."""
    said = []
    for result in results:
        bad = [
            phase
            for phase in result.report.get("phases", [])
            if phase.get("verdict") in ("fail", "unknown")
        ]
        said += [f"{result.where}: {_in_words(phase)}" for phase in bad]
        if not bad and result.verdict not in ("pass", "warn"):
            said.append(f"{result.where}: the verdict is {result.verdict}")
    return said


def junit(results: Sequence[SmokeResult]) -> str:
    """The results as JUnit XML, a suite for each. What is not believed of a report is an error of its own."""
    return dumps({result.where: _believed(result) for result in results})


def _believed(result: SmokeResult) -> dict[str, Any]:
    """The report, with a case that fails where the test did not end as it says."""
    report = result.report
    if report["verdict"] == result.verdict:
        return report
    doubt = f"the report says {report['verdict']}, but the test did not end so"
    case = {
        "name": DOUBT,
        "verdict": "unknown",
        "duration_s": 0.0,
        "message": doubt,
        "data": {},
        "findings": [],
    }
    return {**report, "phases": [*report["phases"], case]}


def _in_words(phase: Mapping[str, Any]) -> str:
    found = [
        finding
        for finding in phase.get("findings", [])
        if finding.get("verdict") in ("fail", "unknown")
    ]
    ids = ", ".join(dict.fromkeys(finding["id"] for finding in found))
    advice = " ".join(dict.fromkeys(finding["advice"] for finding in found))
    return f"{phase['name']}: {phase.get('message', '')}" + (f" ({ids}). {advice}" if found else "")
