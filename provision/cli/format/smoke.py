"""What `provision smoke`, builds and passports print of a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.core.types import SmokeResult


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
    from provision_runtime.report import table
    from provision_runtime.report.model import SCHEMA

    schema = report.get("schema")
    if schema != SCHEMA:
        return [f"{indent}its report has schema {schema!r}, which is not supported: test again"]
    width = table.terminal_width()
    if width:
        width -= len(indent)
    return [f"{indent}{line}" for line in table.lines(report, width)]
