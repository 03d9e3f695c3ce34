"""A file -> the evidence in it: a passport with its smoke reports, or a smoke report alone. What is not whole is refused in words.

The schemas in provision/schemas decide what is whole: the page relies on all that they promise, and on nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.schema import schema_error

PASSPORT, REPORT = "passport", "smoke-report"
SCHEMA = {PASSPORT: 1, REPORT: 2}
OTHER = "Name a passport.json or a smoke test's report.json; `provision build` writes a damaged passport anew."


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run of the smoke test. report: None where it is of a schema that is not ours; `unread` then says so."""

    place: str  # prefix, image, or report for one that stands alone
    verdict: str
    host: str
    report: dict[str, Any] | None
    unread: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one file holds. passport: None for a smoke report that stands alone."""

    source: str
    passport: dict[str, Any] | None
    measured: tuple[Measured, ...]


def read(path: Path) -> Evidence:
    """The evidence of a file. Raises InvalidSpec if there is none, IntegrityError if it is damaged or of another schema."""
    document = _document(path)
    if document.get("kind") == "smoke":
        _check(document, REPORT, str(path))
        host = ", ".join(document["hosts"])
        alone = Measured(place="report", verdict=document["verdict"], host=host, report=document)
        return Evidence(source=str(path), passport=None, measured=(alone,))
    _check(document, PASSPORT, str(path))
    measured = tuple(_measured(path, place, found) for place, found in document["smoke"].items())
    return Evidence(source=str(path), passport=document, measured=measured)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_no_number, parse_float=_finite
        )
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InvalidSpec(
            f"{path} {what}.",
            advice="Name an environment, a passport.json, or the report.json of a smoke test.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not JSON: {error}.", advice=OTHER) from error
    if not isinstance(document, dict) or "schema" not in document:
        raise IntegrityError(f"{path} is neither a passport nor a smoke report.", advice=OTHER)
    return document


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is no number that anything measures")
    return value


def _measured(path: Path, place: str, found: Mapping[str, Any]) -> Measured:
    report = found["report"]
    host = found["measured_on"].get("host", "an unnamed host")
    if report.get("schema") != SCHEMA[REPORT]:
        unread = f"the report is of schema {report.get('schema')!r}, and this provision reads schema {SCHEMA[REPORT]}"
        return Measured(
            place=place, verdict=found["verdict"], host=host, report=None, unread=unread
        )
    _check(report, REPORT, f"{path}: the smoke report of the {place}")
    return Measured(place=place, verdict=found["verdict"], host=host, report=report)


def _check(document: Mapping[str, Any], kind: str, shown: str) -> None:
    """Raises IntegrityError with the first place at which the document is not as its schema says."""
    schema = document.get("schema")
    if schema != SCHEMA[kind]:
        made_by = (
            f" (made by {document['made_by']})" if isinstance(document.get("made_by"), str) else ""
        )
        told = f"{shown} is of schema {schema!r}{made_by}, and this provision reads schema {SCHEMA[kind]}."
        raise IntegrityError(
            told, advice="Read it with the provision that made it, or make it anew."
        )
    error = schema_error(document, kind)
    if error is not None:
        raise IntegrityError(f"{shown} is damaged: at {error}.", advice=_again(kind))


def _again(kind: str) -> str:
    return "Build again: it is written anew." if kind == PASSPORT else "Run the smoke test again."
