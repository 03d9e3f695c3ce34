"""What is printed of an environment: its build, its smoke tests, its passport.

Also the summary of a command over many environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.cli.console import table, wrap
from provision.cli.format.inventory import plain_value
from provision.core.types import BuildResult, EnvironmentOutcome, HostGpus, SmokeResult

SHORT_DIGEST = len("sha256:") + 12


def build_lines(
    result: BuildResult, machine: HostGpus, *, width: int | None = None, brief: bool = False
) -> list[str]:
    """What was made, in which stages, how its tests went, and the commands that use it.

    machine: this one, on which the commands are to work. width: of the terminal. brief: see
    `smoke_lines`.
    """
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
    lines = wrap(", ".join(title), width)
    if result.changed_nothing:
        tested = "; smoke test repeated" if result.smoke else ""
        lines.append(f"nothing changed{tested}")
    lines += ["", table(rows, ("stage", "status", "time", "what"), width=width), ""]
    for smoke_result in result.smoke:
        lines += [*smoke_lines(smoke_result, brief=brief), ""]
    return lines + _next_commands(result, machine)


def _next_commands(result: BuildResult, machine: HostGpus) -> list[str]:
    """Commands to copy."""
    name = result.name
    processes = "gpu" if result.resolution.cuda and machine.gpus else "2"
    lines = [
        "next:",
        f"  shell     provision shell {name}",
        f"  run       provision run {name} -- torchrun --standalone \\",
        f"                --nproc-per-node={processes} train.py",
        f"  add       provision add {name} PACKAGE",
    ]
    if result.kernel:
        lines.append(f"  notebook  provision notebook {name}")
    if result.image:
        lines.append(f"  image     provision run {name} --image -- python train.py")
    return [*lines, f"  evidence  provision passport show {name}"]


def outcome_lines(outcomes: Sequence[EnvironmentOutcome]) -> list[str]:
    """Diffs first, then a row for each environment, then the number that failed."""
    diffs = [outcome.diff.rstrip() for outcome in outcomes if outcome.diff]
    rows = [
        (outcome.name, outcome.status, f"{outcome.seconds:.1f} s", outcome.detail)
        for outcome in outcomes
    ]
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    verdict = f"{failed} of {len(outcomes)} failed"
    return [*diffs, table(rows, ("environment", "status", "time", "what")), "", verdict]


def smoke_lines(result: SmokeResult, *, brief: bool = False) -> list[str]:
    """The verdict of a test and a line per phase; for each finding what happened and what to do.

    brief: only the phases that did not pass, where all were shown while the test ran.
    """
    report = result.report
    ranks = report.get("world_size")
    noun = "rank" if ranks == 1 else "ranks"
    setting = f"{ranks} {noun}, {report.get('backend')} on {report.get('device')}"
    return [
        f"smoke test in the {result.where}: {result.verdict} ({setting})",
        *phase_lines(report, "  ", brief=brief),
        f"  evidence: {result.evidence}",
    ]


def phase_lines(report: Mapping[str, Any], indent: str, *, brief: bool = False) -> list[str]:
    """The phases of a smoke report as the test itself prints them, as wide as the terminal.

    brief: only those that did not pass.
    """
    from provision_runtime.report import table as report_table
    from provision_runtime.report.model import SCHEMA

    schema = report.get("schema")
    if schema != SCHEMA:
        return [f"{indent}its report has schema {schema!r}, which is not supported: test again"]
    if brief:
        phases = [phase for phase in report["phases"] if phase["verdict"] != "pass"]
        if not phases:
            return []
        report = {**report, "phases": phases, "skipped": []}
    width = report_table.terminal_width()
    if width:
        width -= len(indent)
    return [f"{indent}{line}" for line in report_table.lines(report, width)]


def passport_lines(
    passport: Mapping[str, Any], *, width: int | None, sources: bool = True
) -> list[str]:
    """What was requested, what came of it and why, and what was measured.

    passport: with what `judged_passport` adds. width: of the terminal, to which lines are wrapped.
    sources: also say where reasons come from.
    """
    request = ", ".join(f"{key} {plain_value(v)}" for key, v in passport["request"].items())
    lines = [
        f"{passport['name']} ({passport['made_by']}, {passport['written_at']})",
        *wrap(f"requested: {request}", width),
        "",
    ]
    if passport.get("outdated"):
        text = f"not the environment as it is now: {passport['outdated']}; "
        lines += wrap(f"{text}`provision build {passport['name']}` writes a new one", width)
        lines.append("")
    rows = []
    for reason in passport["reasons"]:
        text = f"{reason['value']}: {reason['reason']}"
        if sources:
            text += f" (source: {reason['source']})"
        rows.append((reason["what"], text))
    lines += [table(rows, ("choice", "value and reason"), width=width), ""]
    warnings = passport.get("warnings", ())
    for warning in warnings:
        text = f"{warning['reason']} ({warning['source']}). {warning['value']}"
        lines += wrap(f"warning {warning['what']}: {text}".rstrip(), width)
    if warnings:
        lines.append("")
    lines += [*_products(passport, width, full=sources), ""]
    for place, result in passport["smoke"].items():
        host = result["measured_on"]["host"]
        where = result.get("elsewhere", f"on {host}") or f"here ({host})"
        started_at = result["report"].get("started_at") or "at an unknown time"
        lines.append(f"smoke test in the {place}: {result['verdict']} {where}, {started_at}")
        lines += phase_lines(result["report"], "  ")
    nodes_test = passport.get("smoke_nodes")
    if nodes_test is not None:
        from provision.cluster.folding import fold_equal

        states = {row["node"]: row["state"] for row in nodes_test["nodes"]}
        lines.append(
            f"smoke test over nodes: {nodes_test['verdict']} on {nodes_test['on']}, "
            f"{nodes_test['started_at']}"
        )
        lines += [f"  {nodes}: {state}" for nodes, state in fold_equal(states)]
    if not sources:
        lines += ["", "-v adds the source of each choice, --json shows everything."]
    return lines


def _products(passport: Mapping[str, Any], width: int | None, *, full: bool) -> list[str]:
    """What was made. full: digests in all their length."""
    lock, image, kernel = passport["lock"], passport["image"], passport["kernel"]
    portability = "" if lock["portable"] else ", not portable"
    products = [
        ("lock", f"{lock['sha256'][:16]}: {lock['packages']} packages{portability}"),
        ("prefix", passport["prefix"]["path"]),
    ]
    runtime = passport.get("runtime")
    if runtime:
        products.append(("runtime", f"{runtime['name']} {runtime['version']} in the prefix"))
    if image:
        digest = image["manifest_digest"] if full else image["manifest_digest"][:SHORT_DIGEST]
        products.append(("image", f"{image['reference']} ({digest})"))
    if kernel:
        products.append(("kernel", kernel["name"]))
    return table(products, ("product", "what"), width=width).splitlines()
