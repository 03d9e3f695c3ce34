"""`provision report`: a page of passports and smoke reports, of nodes, or of a lab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provision import render, report
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, StaleLock
from provision.core.paths import Folders
from provision.report import Page
from provision.verbs.report.evidence import evidence_file, load_evidence


def gather(folders: Folders, targets: Sequence[str]) -> Page:
    """The page about environments, passports, smoke reports, or folders that hold one.

    Each is read once.
    """
    paths = dict.fromkeys(evidence_file(folders, target) for target in targets)
    return report.build_page([load_evidence(folders, path) for path in paths])


def write(path: Path, text: str, *, force: bool) -> None:
    """Write the page.

    Raises StaleLock rather than replace a file that provision did not make, unless forced.
    """
    if path.is_dir():
        raise InvalidSpec(f"{path} is a folder.", advice="Name a file, such as report.html.")
    if path.exists() and not force and not render.is_report_page(path):
        raise StaleLock(
            f"{path} is not a page that provision made.",
            advice="Name another file with --output, or replace it with --force.",
        )
    atomic_write(path, text)
