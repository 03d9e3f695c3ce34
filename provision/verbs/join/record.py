"""What `provision join` remembers of a lab: where it came from. Everything else each run looks at
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from provision.core import settings
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.schema import InvalidDocument, parse_document

SCHEMA = 1
FILE = "join.json"
REPOSITORY = "repository"


@frozen
class JoinRecord:
    """source: the address or folder as it was given."""

    source: str
    lab: str = ""


def labs_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where clones and records are: in the data folder as variables and conventions have it, since
    a lab's settings, which may move that, are known only from its clone."""
    data = environ.get("PROVISION_DATA") or settings.xdg_folder("DATA") / "provision"
    return Path(data).absolute() / "labs"


def lab_folder(labs: Path, source: str) -> Path:
    """The folder of one lab, by its address: `vision-3f2a1c`."""
    name = re.sub(r"\.git$", "", source.rstrip("/")).rpartition("/")[2].rpartition(":")[2]
    plain_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "lab"
    return labs / f"{plain_name}-{hashlib.sha256(source.encode()).hexdigest()[:6]}"


def read_record(folder: Path) -> JoinRecord | None:
    """The record of a lab; None if there is none, or if it is damaged: all that it says can be
    found out again."""
    try:
        document = parse_document((folder / FILE).read_bytes(), "join-record")
    except (OSError, InvalidDocument):
        return None
    return JoinRecord(source=document["source"], lab=document["lab"])


def records(labs: Path) -> list[JoinRecord]:
    """All labs that this user joined."""
    all_records = [read_record(path.parent) for path in sorted(labs.glob(f"*/{FILE}"))]
    return [record for record in all_records if record is not None]


def write_record(folder: Path, record: JoinRecord) -> None:
    """Write the record, unless it says that already."""
    if read_record(folder) == record:
        return
    document = {"schema": SCHEMA, **asdict(record)}
    atomic_write(folder / FILE, json.dumps(document, indent=1, sort_keys=True) + "\n")
