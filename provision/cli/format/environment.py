"""What is printed of an environment: its build, its smoke tests, its passport.

Also the summary of a command over many environments.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from provision.cli.console import table
from provision.core.types import BuildResult, Outcome, SmokeResult


def build_lines(result: BuildResult, docker_run: Sequence[str]) -> list[str]:
    """What was made, in which stages, how its tests went, and the commands that use it."""
    resolution = result.resolution
    title = [f"{result.name}: torch {resolution.local_version}", f"Python {resolution.python}"]
    if resolution.nccl:
        title.append(f"NCCL {resolution.nccl}")
    if resolution.driver_floor:
        title.append(f"driver >= {resolution.driver_floor}")
    rows = [
        (record.stage, record.status, f"{record.seconds:.1f} s", record.detail)
        for record in result.stages
    ]
    lines = [", ".join(title), "", table(rows, ("stage", "status", "time", "what")), ""]
    for smoke_result in result.smoke:
        lines += [*smoke_lines(smoke_result), ""]
    return lines + _next_commands(result, docker_run)


def _next_commands(result: BuildResult, docker_run: Sequence[str]) -> list[str]:
    """Commands to copy."""
    prefix = shlex.quote(str(result.prefix.path))
    processes = "gpu" if result.resolution.cuda else "2"
    torchrun = f"{prefix}/bin/torchrun --standalone --nproc-per-node={processes} train.py"
    lines = [
        "next:",
        f"  shell     export PATH={prefix}/bin:$PATH CONDA_PREFIX={prefix} PYTHONNOUSERSITE=1",
        f"  job       {torchrun}",
    ]
    if result.kernel:
        name = result.kernel.display_name
        lines.append(f'  notebook  jupyter lab, then choose the kernel "{name}"')
    if result.image:
        lines.append(f"  image     {shlex.join(docker_run)}")
    return [*lines, f"  evidence  provision passport show {result.name}"]


def outcome_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Diffs first, then a row for each environment, then the number that failed."""
    diffs = [outcome.diff.rstrip() for outcome in outcomes if outcome.diff]
    rows = [
        (outcome.name, outcome.status, f"{outcome.seconds:.1f} s", outcome.detail)
        for outcome in outcomes
    ]
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    verdict = f"{failed} of {len(outcomes)} failed"
    return [*diffs, table(rows, ("environment", "status", "time", "what")), "", verdict]


def smoke_lines(result: SmokeResult) -> list[str]:
    """The verdict of a test and a line per phase; for each finding what happened and what to do."""
    report = result.report
    ranks = report.get("world_size")
    noun = "rank" if ranks == 1 else "ranks"
    setting = f"{ranks} {noun}, {report.get('backend')} on {report.get('device')}"
    return [
        f"smoke test in the {result.where}: {result.verdict} ({setting})",
        *phase_lines(report, "  "),
        f"  evidence: {result.evidence}",
    ]


def phase_lines(report: Mapping[str, Any], indent: str) -> list[str]:
    """The phases of a smoke report as the test itself prints them, as wide as the terminal."""
    from provision_runtime.report import table as report_table
    from provision_runtime.report.model import SCHEMA

    schema = report.get("schema")
    if schema != SCHEMA:
        return [f"{indent}its report has schema {schema!r}, which is not supported: test again"]
    width = report_table.terminal_width()
    if width:
        width -= len(indent)
    return [f"{indent}{line}" for line in report_table.lines(report, width)]


def passport_lines(passport: Mapping[str, Any]) -> list[str]:
    """What was requested, what came of it and why, and what was measured."""
    request = ", ".join(f"{key} {value}" for key, value in passport["request"].items())
    reasons = [
        (reason["what"], str(reason["value"]), reason["reason"], reason["source"])
        for reason in passport["reasons"]
    ]
    lines = [
        f"{passport['name']} ({passport['made_by']}, {passport['written_at']})",
        f"requested: {request}",
        "",
        table(reasons, ("choice", "value", "reason", "source")),
        "",
    ]
    warnings = passport.get("warnings", ())
    for warning in warnings:
        text = f"{warning['reason']} ({warning['source']}). {warning['value']}"
        lines.append(f"warning {warning['what']}: {text}".rstrip())
    if warnings:
        lines.append("")
    lock, image, kernel = passport["lock"], passport["image"], passport["kernel"]
    portability = "" if lock["portable"] else ", not portable"
    lines.append(f"lock    {lock['sha256'][:16]}: {lock['packages']} packages{portability}")
    lines.append(f"prefix  {passport['prefix']['path']}")
    runtime = passport.get("runtime")
    if runtime:
        lines.append(f"runtime {runtime['name']} {runtime['version']} in its site-packages")
    if image:
        lines.append(f"image   {image['reference']} ({image['manifest_digest']})")
    if kernel:
        lines.append(f"kernel  {kernel['name']}")
    for place, result in passport["smoke"].items():
        lines.append(f"smoke   {place}: {result['verdict']} on {result['measured_on']['host']}")
        lines += phase_lines(result["report"], " " * 8)
    return lines
