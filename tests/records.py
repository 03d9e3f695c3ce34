"""Small channels that contain only records: enough for a solver, nothing to download."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.adapters import conda
from provision.core.mirrors import Mirrors, parse_mirror

TIMESTAMP = 1_700_000_000_000  # 2023-11-14


def record(
    name: str, version: str = "1", build: str = "0", *, depends: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """One record as repodata.json has it; timestamp=None: a record without a date."""
    row = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": 0,
        "depends": list(depends),
        "md5": "a" * 32,
        "sha256": "a" * 64,
        "timestamp": TIMESTAMP,
    }
    return {key: value for key, value in {**row, **more}.items() if value is not None}


def make_channel(folder: Path, records: Mapping[str, Sequence[dict[str, Any]]]) -> Path:
    """A channel with these records by subdir; noarch is always there."""
    for subdir in {*records, "noarch"}:
        rows = {
            f"{row['name']}-{row['version']}-{row['build']}.conda": {**row, "subdir": subdir}
            for row in records.get(subdir, ())
        }
        (folder / subdir).mkdir(parents=True, exist_ok=True)
        content = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": rows}
        (folder / subdir / "repodata.json").write_text(json.dumps(content))
    return folder


def alias(folder: Path) -> Mirrors:
    """Every channel that is known by its name alone, from a folder."""
    return Mirrors([parse_mirror(f"*={folder}", Path())], channel_url=conda.channel_url)
