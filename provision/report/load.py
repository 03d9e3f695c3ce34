"""A file -> the evidence in it: a passport with its smoke reports, a smoke report alone, or nodes
that were compared.

The schemas in provision/schemas decide which files are complete: the page relies on exactly what
they require.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from provision.core.dataclass import frozen
from provision.core.documents import DriftRecord, Passport, SmokeReport
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.json_text import parse_json
from provision.core.schema import schema_error
from provision_runtime.report import model
from provision_runtime.report.model import Report

PASSPORT, REPORT, NODES = "passport", "smoke-report", "drift"
SCHEMA_VERSIONS = {PASSPORT: 1, REPORT: 2, NODES: 1}
# As --json prints them.
PRINTED = {"provision.passport-show/1": PASSPORT, "provision.drift/1": NODES}
ADVICE = (
    "Name a passport.json or a smoke test's report.json; with --nodes, what `provision drift --output "
    "FILE` wrote. For a damaged file, run `provision build`, the smoke test or `drift` again."
)


@frozen
class SmokeRun:
    location: str  # prefix, image, or report for a report without a passport
    verdict: str
    host: str
    report: Report


@frozen
class EvidenceFile:
    """The content of one file. passport: None for a smoke report without one. outdated: why it is
    not of the environment as it is now, empty if nothing says so."""

    source: str
    passport: Passport | None
    runs: tuple[SmokeRun, ...]
    outdated: str = ""


def load(path: Path) -> EvidenceFile:
    """The evidence in a file.

    Raises InvalidSpec if there is no such file, IntegrityError if it is damaged or of another
    schema.
    """
    document = _read_json(path)
    if document.get("kind") == NODES:
        raise InvalidSpec(
            f"{path} is a comparison of nodes.",
            advice=f"Draw it with `provision report --nodes {shlex.quote(str(path))}`.",
        )
    if document.get("kind") == "smoke":
        report = _report(document, str(path))
        hosts = ", ".join(report.hosts)
        run = SmokeRun(location="report", verdict=report.verdict, host=hosts, report=report)
        return EvidenceFile(source=str(path), passport=None, runs=(run,))
    _check(document, PASSPORT, str(path))
    passport = cast(Passport, document)
    elsewhere = [(verdict["target"], verdict) for verdict in passport.get("smoke_elsewhere", ())]
    runs = [
        SmokeRun(
            location=location,
            verdict=verdict["verdict"],
            host=verdict["measured_on"]["host"],
            report=_report(verdict["report"], f"{path}: the smoke report of the {location}"),
        )
        for location, verdict in (*passport["smoke"].items(), *elsewhere)
    ]
    return EvidenceFile(source=str(path), passport=passport, runs=tuple(runs))


def load_nodes(path: Path) -> DriftRecord:
    """What `provision drift` wrote.

    Raises InvalidSpec if there is no such file, or if it is about something else, IntegrityError if
    it is damaged or of another schema.
    """
    document = _read_json(path)
    if document.get("kind") != NODES:
        raise InvalidSpec(f"{path} is not a comparison of nodes.", advice=ADVICE)
    _check(document, NODES, str(path))
    return cast(DriftRecord, document)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidSpec(f"{path}: {error.strerror}.", advice=ADVICE) from error
    except ValueError as error:
        raise IntegrityError(f"{path} is not JSON: {error}.", advice=ADVICE) from error
    if not isinstance(document, dict) or "schema" not in document:
        raise IntegrityError(f"{path} is not a record of provision.", advice=ADVICE)
    if str(document["schema"]) in PRINTED:
        document["schema"] = SCHEMA_VERSIONS[PRINTED[document["schema"]]]
    return document


def _report(document: SmokeReport, label: str) -> Report:
    _check(document, REPORT, label)
    try:
        return model.parse(document)
    except model.ReportUnreadable as error:
        raise IntegrityError(f"{label} is damaged: {error}.", advice=ADVICE) from error


def _check(document: Mapping[str, Any], kind: str, label: str) -> None:
    """Raise IntegrityError, with the entry, if the document violates its schema."""
    version = document.get("schema")
    if version != SCHEMA_VERSIONS[kind]:
        raise IntegrityError(
            f"{label} is of schema {version!r}, and this provision reads schema "
            f"{SCHEMA_VERSIONS[kind]}.",
            advice="Read it with the provision that made it, or make it again.",
        )
    violation = schema_error(document, kind)
    if violation is not None:
        raise IntegrityError(f"{label} is damaged: at {violation}.", advice=ADVICE)
