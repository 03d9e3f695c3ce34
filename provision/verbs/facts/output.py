"""What `provision facts` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.text import days_old, fact_lines, home_path

if TYPE_CHECKING:
    from provision.verbs.facts.facts import FactsCheck, FactsSummary, FactsUpdate


def summary_lines(summary: FactsSummary, width: int | None) -> list[str]:
    edition = summary.edition
    facts = [
        ("date", f"{edition.date} ({days_old(edition.date)})"),
        ("origin", edition.origin),
        ("file", home_path(summary.file)),
        ("sha256", edition.sha256),
        ("torch", f"{summary.releases} releases, the newest {summary.newest}"),
        ("CUDA", f"up to {summary.cuda}"),
    ]
    if edition.fetched:
        facts.insert(2, ("fetched", f"{edition.fetched} ({edition.verified})"))
    if edition.from_index:
        facts.append(("from the package index alone", ", ".join(edition.from_index)))
    if edition.lab_file:
        facts.append(("the lab's own", home_path(edition.lab_file)))
    return fact_lines(facts, width)


def update_lines(update: FactsUpdate) -> list[str]:
    lines = [f"not read: {note}" for note in update.notes]
    if not update.changed:
        return [*lines, f"nothing newer: {update.before}"]
    lines += [f"new: torch {version}" for version in update.added]
    verb = "would be" if update.dry_run else "are now"
    return [*lines, f"{verb} in use: {update.after} ({update.after.verified})"]


def check_lines(checks: Sequence[FactsCheck]) -> list[str]:
    return [f"{check.verdict}  {check.subject}: {check.message}" for check in checks]
