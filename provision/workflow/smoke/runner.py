"""Starts the smoke test, which is part of `provision_runtime`, and reads its report.

The test runs as a process of the environment's own interpreter; nothing of torch is imported here.
Only the report counts: without a report, or with one that contradicts itself, a test has not
passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import cast

from provision.core.errors import CheckFailed, InvalidSpec
from provision.core.json_text import parse_json
from provision.core.process import clean_environment, run
from provision.core.schema import schema_error
from provision.core.types import Prefix, Resolution, SmokeResult, SmokeTarget, Verdict
from provision.workflow.smoke.request import SmokeRequest, arguments
from provision_runtime.report import model as report_model

RUNTIME = Path(str(files("provision_runtime")))
REPORT = "report.json"
# What the host waits beyond the test's own deadline: starting Python and importing torch twice from
# a cold disk.
STARTING_S = 120.0
# The exit code with which argparse refuses options.
USAGE = 2
# The phase that says why a report is not trusted.
REPORT_PHASE = "report"


def in_prefix(
    prefix: Prefix,
    resolution: Resolution,
    request: SmokeRequest,
    env: Mapping[str, str],
    out: Path,
    on_line: Callable[[str], None] | None = None,
) -> SmokeResult:
    """Run the smoke test in a prefix and read its report.

    env: the prefix's activation. out: the folder for everything that the test leaves; an earlier
    report in it is removed. on_line: called with each line that the test prints, as it comes.
    """
    # The runtime package that is installed in the prefix: -I keeps other modules out, -B leaves no
    # byte code in it.
    command = [str(prefix.python), "-I", "-B", "-m", "provision_runtime", "smoke"]
    command += ["--out", str(out), *arguments(resolution, request)]
    remove_old_report(out)
    completed = run(
        command,
        env=clean_environment({**env, "PYTHONDONTWRITEBYTECODE": "1"}),
        timeout_s=request.timeout_s + STARTING_S,
        check=False,
        on_stdout_line=on_line,
        owner_writes_only=True,  # the report is evidence
    )
    return read_report(out, "prefix", completed.returncode, completed.stdout + completed.stderr)


def remove_old_report(out: Path) -> None:
    """Create the folder and remove an earlier report, which would pass for this run's."""
    out.mkdir(parents=True, exist_ok=True)
    (out / REPORT).unlink(missing_ok=True)


def read_report(folder: Path, where: SmokeTarget, status: int, output: str) -> SmokeResult:
    """Read the report that the test wrote.

    The verdict is unknown, never a pass, if the report has another shape, if its verdict does not
    follow from its phases, or if the test's exit status contradicts it. Raises InvalidSpec if the
    test refused its options, CheckFailed if it left no report.
    """
    try:
        document = parse_json((folder / REPORT).read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError(f"{REPORT} holds JSON, but not an object")
    except (OSError, ValueError) as error:
        # What argparse prints last: `usage: ... error: MESSAGE`.
        refusal = output.rpartition("error: ")[2].strip().rstrip(".")
        if status == USAGE and refusal:
            raise InvalidSpec(
                f"The smoke test in the {where} refused its options: {refusal}.", details=output
            ) from error
        tail = " ".join(output.split())[-600:] or "it printed nothing"
        raise CheckFailed(
            f"The smoke test in the {where} ended with status {status} and left no report: {tail}.",
            advice=f"`provision smoke -v` shows its whole output; its files are in {folder}.",
            details=output,
        ) from error
    try:
        verdict = parse_report(document).verdict
    except report_model.ReportUnreadable as error:
        # The file itself stays in the evidence.
        verdict = report_model.UNKNOWN
        report = report_model.Report(
            started_at="",
            duration_s=0.0,
            backend="unknown",
            device="unknown",
            world_size=0,
            hosts=[],
            profile="unknown",
            skipped=[],
            facts={},
            phases=[_untrusted_phase(str(error))],
        )
        document = {**report_model.document(report), "schema": document.get("schema")}
    if report_model.succeeded(verdict) and status != 0:
        verdict = report_model.UNKNOWN
    return SmokeResult(
        where=where, verdict=cast("Verdict", verdict), report=document, evidence=folder
    )


def parse_report(document: object) -> report_model.Report:
    """Raises ReportUnreadable, with the entry and the field that violate the schema."""
    violation = schema_error(document, "smoke-report")
    if violation is not None:
        raise report_model.ReportUnreadable(
            f"not a smoke report of schema {report_model.SCHEMA}: at {violation}"
        )
    return report_model.parse(document)


def _untrusted_phase(reason: str) -> report_model.ReportedPhase:
    return report_model.ReportedPhase(REPORT_PHASE, report_model.UNKNOWN, 0.0, reason, {}, [])


def failures(results: Sequence[SmokeResult]) -> list[str]:
    """One sentence for each phase that did not pass, and for each result that is not a success."""
    bad = (report_model.FAIL, report_model.UNKNOWN)
    sentences = []
    for result in results:
        failed_phases = [phase for phase in result.report["phases"] if phase["verdict"] in bad]
        for phase in failed_phases:
            sentence = f"{result.where}: {phase['name']}: {phase['message']}"
            findings = [finding for finding in phase["findings"] if finding["verdict"] in bad]
            if findings:
                ids = ", ".join(dict.fromkeys(finding["id"] for finding in findings))
                advice = " ".join(dict.fromkeys(finding["advice"] for finding in findings))
                sentence += f" ({ids}). {advice}"
            sentences.append(sentence)
        if not failed_phases and result.verdict in bad:
            sentences.append(f"{result.where}: the verdict is {result.verdict}")
    return sentences
