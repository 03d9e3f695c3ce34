"""`provision report`: passports and smoke reports as one page, or nodes as another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from provision import render, report
from provision.commands.passport import (
    differs_from_lock,
    outdated,
    read_passport,
)
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, StaleLock
from provision.core.paths import LOCK, Folders
from provision.core.similar_names import did_you_mean
from provision.environment import passport as passports
from provision.report import NodesPage, Page
from provision.report.load import EvidenceFile

SMOKE_REPORT = "report.json"


def gather(folders: Folders, targets: Sequence[str]) -> Page:
    """The page about environments, passports, smoke reports, or folders that hold one.

    Each is read once.
    """
    paths = dict.fromkeys(evidence_file(folders, target) for target in targets)
    return report.build_page([load_evidence(folders, path) for path in paths])


def load_evidence(folders: Folders, path: Path) -> EvidenceFile:
    """The evidence in a file, and whether it is of the environment as it is now: as it is here for
    a passport of this user, else as the lock next to it says, if there is one."""
    evidence = report.load(path)
    if evidence.passport is None:
        return evidence
    if path.absolute() == passports.folder_of(folders, evidence.passport["name"]) / passports.FILE:
        reason = outdated(folders, evidence.passport)
    else:
        reason = differs_from_lock(evidence.passport, path.parent / LOCK)
    return dataclasses.replace(evidence, outdated=reason)


def evidence_file(folders: Folders, target: str) -> Path:
    """A target's file: of an environment its passport, of a folder the passport or smoke report."""
    named_passport = passports.folder_of(folders, target) / passports.FILE
    if "/" not in target and named_passport.is_file():
        read_passport(folders, target)  # raises for that of another user
        return named_passport
    path = Path(target)
    if path.is_dir():
        for name in (passports.FILE, SMOKE_REPORT):
            if (path / name).is_file():
                return path / name
    if path.exists():
        return path
    names = sorted(
        path.parent.name for path in folders.passport("*").parent.glob(f"*/{passports.FILE}")
    )
    raise InvalidSpec(
        f"`{target}` is neither an environment with a passport nor a file.",
        advice=(
            f"{did_you_mean(target, names)}Environments with a passport: {', '.join(names) or 'none'}. Or name a "
            "passport.json, or a smoke test's report.json."
        ),
    )


def render_page(page: Page, remake: Sequence[str]) -> str:
    """The page as HTML. remake: the command that makes it again."""
    return render.render_report(report.template_values(page), remake=remake)


def markdown(page: Page) -> str:
    """The page's verdicts and findings as Markdown."""
    return report.markdown_summary(page)


def render_nodes(file: Path, remake: Sequence[str]) -> tuple[NodesPage, str]:
    """The page of what `provision drift` wrote, as values and as HTML.

    Raises InvalidSpec and IntegrityError for a file that cannot be drawn.
    """
    record = report.load_nodes(file)
    values = report.nodes_template_values(record)
    return values["page"], render.render_nodes_report(values, remake=remake)


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
