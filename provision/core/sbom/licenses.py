"""The licenses that the packages of an environment name, in their own words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.core.types import Manager

# Manager and canonical name -> license.
Licenses = Mapping[tuple[Manager, str], str]
# A longer one is the license's text, not its name.
NAME_LIMIT = 120


def prefix_licenses(prefix: Path) -> Licenses:
    """The licenses of a prefix's packages; packages that name none are left out."""
    return read_licenses(_metadata_files(prefix))


def read_licenses(files: Iterable[tuple[str, bytes]]) -> Licenses:
    """The same, from conda's records (conda-meta/*.json) and wheels' METADATA with their paths."""
    licenses: dict[tuple[Manager, str], str] = {}
    for path, content in files:
        # What cannot be read names no license.
        with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
            if path.endswith(".json"):
                record = json.loads(content)
                if record.get("license"):
                    name = canonicalize_name(str(record["name"]))
                    licenses["conda", name] = str(record["license"])
            else:
                wheel, license_name = _read_metadata(content)
                if license_name:
                    licenses["pip", canonicalize_name(wheel)] = license_name
    return licenses


def _metadata_files(prefix: Path) -> Iterator[tuple[str, bytes]]:
    for pattern in ("conda-meta/*.json", "lib/python*/site-packages/*.dist-info/METADATA"):
        for path in sorted(prefix.glob(pattern)):
            with contextlib.suppress(OSError):
                yield str(path), path.read_bytes()


def _read_metadata(content: bytes) -> tuple[str, str]:
    """Name and license: the expression if there is one (PEP 639), else the old field if it is a
    name and not a text, else the classifiers."""
    metadata = HeaderParser().parsestr(content.decode())
    for field in ("License-Expression", "License"):
        lines = metadata.get_all(field) or [""]
        text = str(lines[0]).strip()
        is_name = text and text.upper() != "UNKNOWN" and "\n" not in text
        if is_name and len(text) <= NAME_LIMIT:
            return metadata["Name"], text
    names = []
    for classifier in metadata.get_all("Classifier") or []:
        if str(classifier).startswith("License ::"):
            names.append(str(classifier).rpartition("::")[2].strip())
    return metadata["Name"], ", ".join(names)
