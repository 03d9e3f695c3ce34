"""What `provision join` remembers of a lab: where it came from. Everything else each run looks at
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from provision.core import settings
from provision.core.atomic import atomic_write
from provision.core.schema import InvalidDocument, parse_document

SCHEMA = 1
FILE = "join.json"
REPOSITORY = "repository"


def labs_folder() -> Path:
    """Where clones and records are: in the data folder as variables and conventions have it, since
    a lab's settings, which may move that, are known only from its clone."""
    data = os.environ.get("PROVISION_DATA") or settings.xdg_folder("DATA") / "provision"
    return Path(data).absolute() / "labs"


def lab_folder(labs: Path, source: str) -> Path:
    """The folder of one lab, by its address: `vision-3f2a1c`."""
    name = re.sub(r"\.git$", "", source.rstrip("/")).rpartition("/")[2].rpartition(":")[2]
    plain_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "lab"
    return labs / f"{plain_name}-{hashlib.sha256(source.encode()).hexdigest()[:6]}"


def read_source(folder: Path) -> str | None:
    """Where a lab came from, as it was given; None if its record is missing or damaged: all that it says
    can be found out again."""
    try:
        return str(parse_document((folder / FILE).read_bytes(), "join-record")["source"])
    except (OSError, InvalidDocument):
        return None


def sources(labs: Path) -> list[str]:
    """Where all labs came from that this user joined."""
    return list(filter(None, (read_source(path.parent) for path in sorted(labs.glob(f"*/{FILE}")))))


def write_source(folder: Path, source: str) -> None:
    """Write the record, unless it says that already."""
    if read_source(folder) != source:
        document = {"schema": SCHEMA, "source": source}
        atomic_write(folder / FILE, json.dumps(document, indent=1, sort_keys=True) + "\n")
