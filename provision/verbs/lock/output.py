"""What `provision lock`, its verbs and `provision channel mirror` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.lockfile import describe_diff

if TYPE_CHECKING:
    from provision.lockfile import VerifyReport
    from provision.workflow.lock import LockPreview


def preview_lines(preview: LockPreview) -> list[str]:
    """How the present lock would differ; without a lock, the packages of the first one."""
    if preview.difference is not None:
        return [*describe_diff(preview.difference), "nothing was changed (--dry-run)"]
    several_platforms = len({package.platform for package in preview.packages}) > 1
    lines = []
    for package in preview.packages:
        line = f"{package.manager}  {package.name} {package.version} {package.build}".rstrip()
        if several_platforms:
            line = f"{package.platform}  {line}"
        lines.append(line)
    return lines


def verify_lines(reports: Sequence[VerifyReport]) -> list[str]:
    """One finding per line, then a line for each lock."""
    lines = [
        f"{report.lock}: {finding.platform} {finding.package} {finding.message}"
        for report in reports
        for finding in report.findings
    ]
    for report in reports:
        count = len(report.findings)
        verdict = "nothing wrong"
        if count:
            verdict = f"{count} finding" if count == 1 else f"{count} findings"
        lines.append(f"{report.lock}: {report.packages} packages, {verdict}")
    return lines
