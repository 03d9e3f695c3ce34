"""Fingerprints of installed wheels, by which a prefix is known to hold the wheels that were
installed, and no others since."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from pathlib import Path


def fingerprints(prefix: Path) -> dict[str, str]:
    """Of every wheel in a prefix, by the name of its dist-info folder."""
    records = sorted(prefix.glob("lib/python3*/site-packages/*.dist-info/RECORD"))
    return {record.parent.name: fingerprint(record) for record in records}


def fingerprint(record: Path) -> str:
    """The hash of a RECORD, which has the hash of each file, and of the names of executable files,
    which no RECORD has."""
    content = record.read_bytes()
    site = record.parent.parent
    executables = []
    for row in csv.reader(content.decode(errors="replace").splitlines()):
        if row and _is_executable(site / row[0]):
            executables.append(row[0])
    return hashlib.sha256(content + json.dumps(sorted(executables)).encode()).hexdigest()


def _is_executable(path: Path) -> bool:
    try:
        return not path.name.endswith(".pyc") and bool(os.lstat(path).st_mode & 0o100)
    except (OSError, ValueError):
        return False
