"""What the packages of a prefix say of their licenses, in their own words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import PathDistribution
from pathlib import Path

from provision.model import Manager
from provision.wheels import normal

# Longer than this it is the license's text, not its name.
NAME_LIMIT = 120


def licenses(prefix: Path) -> Mapping[tuple[Manager, str], str]:
    """By manager and name; packages that say nothing are left out."""
    return {**dict(_of_conda(prefix)), **dict(_of_wheels(prefix))}


def _of_conda(prefix: Path) -> Iterator[tuple[tuple[Manager, str], str]]:
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.get("license"):
                yield ("conda", normal(str(record["name"]))), str(record["license"])
        except (OSError, ValueError, AttributeError, KeyError):  # what cannot be read says nothing
            continue


def _of_wheels(prefix: Path) -> Iterator[tuple[tuple[Manager, str], str]]:
    for path in sorted(prefix.glob("lib/python*/site-packages/*.dist-info")):
        try:
            metadata = PathDistribution(path).metadata
            said = _license(metadata.get_all("License-Expression"), metadata.get_all("License"), metadata.get_all("Classifier"))
            if said:
                yield ("pip", normal(metadata["Name"])), said
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _license(expression: list[str] | None, said: list[str] | None, classifiers: list[str] | None) -> str:
    """The expression where there is one (PEP 639), else the old field if it is a name and not a text, else the classifiers."""
    for found in (expression, said):
        line = (found or [""])[0].strip()
        if line and line.upper() != "UNKNOWN" and "\n" not in line and len(line) <= NAME_LIMIT:
            return line
    kinds = [line.rpartition("::")[2].strip() for line in classifiers or [] if line.startswith("License ::")]
    return ", ".join(kinds)
