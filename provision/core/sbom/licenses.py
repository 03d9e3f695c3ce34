"""What the packages of an environment say of their licenses, in their own words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.core.types import Manager

Said = tuple[tuple[Manager, str], str]  # manager and name, license

# Longer than this it is the license's text, not its name.
NAME_LIMIT = 120


def prefix_licenses(prefix: Path) -> Mapping[tuple[Manager, str], str]:
    """By manager and name; packages that say nothing are left out."""
    return read_licenses(_files(prefix))


def read_licenses(files: Iterable[tuple[str, bytes]]) -> Mapping[tuple[Manager, str], str]:
    """The same, of conda's records (conda-meta/*.json) and wheels' METADATA with their paths."""
    found: dict[tuple[Manager, str], str] = {}
    for path, content in files:
        with contextlib.suppress(
            ValueError, AttributeError, KeyError, TypeError
        ):  # what cannot be read says nothing
            found.update(_of_conda(content) if path.endswith(".json") else _of_wheel(content))
    return found


def _files(prefix: Path) -> Iterator[tuple[str, bytes]]:
    for pattern in ("conda-meta/*.json", "lib/python*/site-packages/*.dist-info/METADATA"):
        for path in sorted(prefix.glob(pattern)):
            with contextlib.suppress(OSError):
                yield str(path), path.read_bytes()


def _of_conda(content: bytes) -> Iterator[Said]:
    record = json.loads(content)
    if record.get("license"):
        yield ("conda", canonicalize_name(str(record["name"]))), str(record["license"])


def _of_wheel(content: bytes) -> Iterator[Said]:
    metadata = HeaderParser().parsestr(content.decode())
    said = _license(
        _all(metadata, "License-Expression"),
        _all(metadata, "License"),
        _all(metadata, "Classifier"),
    )
    if said:
        yield ("pip", canonicalize_name(metadata["Name"])), said


def _all(metadata: Message, key: str) -> list[str]:
    return [str(value) for value in metadata.get_all(key) or []]


def _license(expression: list[str], said: list[str], classifiers: list[str]) -> str:
    """The expression where there is one (PEP 639), else the old field if it is a name and not a text, else the classifiers."""
    for found in (expression, said):
        line = (found or [""])[0].strip()
        if line and line.upper() != "UNKNOWN" and "\n" not in line and len(line) <= NAME_LIMIT:
            return line
    kinds = [
        line.rpartition("::")[2].strip() for line in classifiers if line.startswith("License ::")
    ]
    return ", ".join(kinds)
