"""`provision report`: a page of passports and smoke reports, of nodes, or of a lab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provision import render, report
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, StaleLock
from provision.core.paths import Folders
from provision.report import NodesPage, Page
from provision.verbs.report.lab import LabReport, lab_report
from provision.verbs.report.lab_page import page_values
from provision.workflow.context import Context
from provision.workflow.evidence import evidence_file, load_evidence
from provision_runtime.report.text import format_count


def gather(folders: Folders, targets: Sequence[str]) -> Page:
    """The page about environments, passports, smoke reports, or folders that hold one.

    Each is read once.
    """
    paths = dict.fromkeys(evidence_file(folders, target) for target in targets)
    return report.build_page([load_evidence(folders, path) for path in paths])


def render_page(page: Page, remake: Sequence[str]) -> str:
    """The page as HTML. remake: the command that makes it again."""
    return render.render_report(render.REPORT, report.template_values(page), remake=remake)


def render_nodes(file: Path, remake: Sequence[str]) -> tuple[NodesPage, str]:
    """The page of what `provision drift` wrote, as values and as HTML.

    Raises InvalidSpec and IntegrityError for a file that cannot be drawn.
    """
    values = report.nodes_template_values(report.load_nodes(file))
    return values["page"], render.render_report(render.NODES_REPORT, values, remake=remake)


def render_lab(
    context: Context, files: Sequence[Path], remake: Sequence[str]
) -> tuple[LabReport, str]:
    """What the machines of a lab have recorded, as values and as HTML."""
    content = lab_report(context, files)
    return content, render.render_report(render.LAB_REPORT, page_values(content), remake=remake)


def summary(page: Page | NodesPage | LabReport) -> str:
    """A page in a line."""
    if isinstance(page, LabReport):
        return f"{page.title}, {page_values(page)['summary']}"
    if isinstance(page, NodesPage):
        return f"{page.title}, {page.verdict}, {page.summary}"
    runs = format_count(len(page.measurements), "run")
    return f"{page.title}, {page.verdict}, {runs} of the smoke test"


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
