"""What an installed wheel is, in a few digits: by them a prefix is known to hold the wheels that were put into it, and not others since."""

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
    """Of its RECORD, which has the hash of each file, and of which files may be run, which no RECORD says."""
    content = record.read_bytes()
    site = record.parent.parent
    rows = csv.reader(content.decode(errors="replace").splitlines())
    runs = sorted(row[0] for row in rows if row and _runs(site / row[0]))
    return hashlib.sha256(content + json.dumps(runs).encode()).hexdigest()


def _runs(path: Path) -> bool:
    try:
        return not path.name.endswith(".pyc") and bool(os.lstat(path).st_mode & 0o100)
    except (OSError, ValueError):
        return False
