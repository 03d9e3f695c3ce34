"""What `provision lab` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.verbs.lab.check import LabCheck


def check_lines(checks: Sequence[LabCheck]) -> list[str]:
    """A line for each check, its advice below it, and the number of failures."""
    width = max(len(check.verdict) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:{width}}  {check.subject}: {check.message}")
        if check.advice:
            lines.append(f"{'':{width}}  > {check.advice}")
    failed = sum(check.verdict == "fail" for check in checks)
    lines.append(f"{format_count(len(checks), 'check')}: {failed or 'none'} failed")
    return lines
