"""The file that makes a folder a prefix of ours: which environment it is, and of which lock.

Imports little, because `provision run` reads it before it becomes the user's command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provision.core.json_text import parse_json
from provision.core.types import Prefix

# Not *.json: conda, mamba and rattler read every *.json in conda-meta as the record of a package.
MARKER = Path("conda-meta") / "provision.state"
# The marker's key that says that the prefix came in a pack, and its byte code with it;
# provision_runtime.facts.digests reads it.
PACK = "pack"
EARLIER_MARKER = Path("conda-meta") / "provision.json"


def find(name: str, path: Path) -> Prefix | None:
    """The prefix of that name at `path`, if provision completed one there."""
    marker = read_marker(path)
    if marker is None or marker["name"] != name:
        return None
    wheels = marker.get("wheels")
    return Prefix(
        name=name,
        path=path,
        lock_sha256=marker["lock_sha256"],
        wheels=wheels if isinstance(wheels, dict) else None,
    )


def read_marker(path: Path) -> dict[str, Any] | None:
    """The content of a prefix's marker; None for a folder that is no complete prefix of ours."""
    file = path / MARKER
    if not file.exists():
        file = path / EARLIER_MARKER
    try:
        marker = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(marker, dict):
        return None
    for key in ("name", "folder", "lock_sha256"):
        if not isinstance(marker.get(key), str):
            return None
    return marker


def package_records(path: Path) -> frozenset[str]:
    """The names of the records of all packages in a prefix, conda's and wheels'."""
    names = {record.name for record in path.glob("conda-meta/*.json")}
    names.discard(EARLIER_MARKER.name)
    names.update(folder.name for folder in path.glob("lib/python3*/site-packages/*.dist-info"))
    return frozenset(names)


def recorded_contents(path: Path) -> frozenset[str] | None:
    """The same as they were when provision installed the prefix; None if it did not record them."""
    marker = read_marker(path) or {}
    records = marker.get("records")
    return frozenset(map(str, records)) if isinstance(records, list) else None


def added_by_hand(path: Path) -> list[str]:
    """The wheels that somebody installed into a prefix after provision did, `einops 0.8.2`; empty
    for a prefix of an earlier provision, which did not record what it installed."""
    recorded = recorded_contents(path)
    if recorded is None:
        return []
    added = []
    for name in sorted(package_records(path) - recorded):
        stem, suffix = Path(name).stem, Path(name).suffix
        if suffix == ".dist-info" and not stem.startswith("provision_runtime-"):
            added.append(stem.replace("-", " ", 1))
    return added


def described_in(path: Path) -> Path | None:
    """The environment's folder under envs from which a prefix was made; None if not recorded."""
    folder = (read_marker(path) or {}).get("folder")
    return Path(folder) if isinstance(folder, str) else None


def printed_warnings(path: Path) -> frozenset[str]:
    """The ids of the warnings about the build that were printed when a prefix was installed."""
    warnings = (read_marker(path) or {}).get("warnings")
    return frozenset(map(str, warnings)) if isinstance(warnings, list) else frozenset()


def is_shipped(path: Path) -> bool:
    """Whether a prefix came in a pack: it belongs to whoever shipped it, not to its users."""
    return PACK in (read_marker(path) or {})


def installed_size(path: Path) -> int | None:
    """The bytes of a prefix when it was installed; None if they were not recorded."""
    size = (read_marker(path) or {}).get("size")
    return size if isinstance(size, int) else None


def installed_at(path: Path) -> float | None:
    """When a prefix was installed, in seconds since 1970."""
    for marker in (path / MARKER, path / EARLIER_MARKER):
        if marker.exists():
            return marker.stat().st_mtime
    return None


def rename_earlier_marker(path: Path) -> None:
    """Give the marker of a prefix of an earlier provision its present name, so that conda can read
    the prefix."""
    if not (path / MARKER).exists() and (path / EARLIER_MARKER).exists():
        (path / EARLIER_MARKER).rename(path / MARKER)
