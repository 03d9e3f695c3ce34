"""The file that makes a folder a prefix of ours: which environment it is, and of which lock.

Imports little, because `provision run` reads it before it becomes the user's command.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.records import parse_record
from provision.core.types import Prefix
from provision_runtime.facts import freshness

# Not *.json: conda, mamba and rattler read every *.json in conda-meta as the record of a package.
MARKER = Path("conda-meta") / "provision.state"


@frozen
class Marker:
    """folder: the environment's, under envs. spec_sha256: of its spec.yml. size: bytes when it was
    installed. records: the packages of that moment, see `package_records`. warnings: the ids of those
    about the build that were printed. pack: the key of the pack in which the prefix came, which has
    its byte code; such a prefix belongs to whoever shipped it."""

    name: str
    folder: str
    lock_sha256: str
    spec_sha256: str = ""
    size: int = 0
    records: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pack: str = ""

    def prefix(self, path: Path) -> Prefix:
        """The prefix at `path`, which has this marker."""
        return Prefix(name=self.name, path=path, lock_sha256=self.lock_sha256)


def write(prefix: Path, marker: Marker) -> None:
    """Write the marker: from now on the folder is a prefix."""
    content = {key: value for key, value in asdict(marker).items() if value}
    # It replaces the file, which may be a hard link into the prefix that is still in use.
    atomic_write(prefix / MARKER, json.dumps(content, indent=1) + "\n")


def read(prefix: Path) -> Marker | None:
    """The marker of a prefix; None for a folder that is no complete prefix of ours."""
    try:
        return parse_record(Marker, (prefix / MARKER).read_bytes())
    except (OSError, ValueError):
        return None


def find(name: str, path: Path) -> Prefix | None:
    """The prefix of that name at `path`, if provision completed one there."""
    marker = read(path)
    if marker is None or marker.name != name:
        return None
    return marker.prefix(path)


def record_spec(prefix: Path, folder: Path) -> None:
    """Record that a prefix is what the spec.yml of its folder requests. Its age stays."""
    marker = read(prefix)
    sha256 = freshness.spec_sha256(str(folder))
    if marker is not None and marker.spec_sha256 != sha256:
        installed = (prefix / MARKER).stat()
        write(prefix, replace(marker, spec_sha256=sha256))
        os.utime(prefix / MARKER, ns=(installed.st_atime_ns, installed.st_mtime_ns))


def added_by_hand(path: Path) -> list[str]:
    """The wheels that somebody installed into a prefix after provision did, `einops 0.8.2`."""
    marker = read(path)
    recorded = marker.records if marker else ()
    added = []
    for name in (
        sorted(freshness.package_records(str(path)).difference(recorded)) if recorded else ()
    ):
        stem, suffix = Path(name).stem, Path(name).suffix
        if suffix == ".dist-info" and not stem.startswith("provision_runtime-"):
            added.append(stem.replace("-", " ", 1))
    return added
