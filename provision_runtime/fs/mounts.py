"""Which file system a path is on, from the kernel's /proc/self/mountinfo.

`parse` and `mount_of` are pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..dataclass import frozen
from .files import nearest_existing, read_text

# Types of file systems on other machines, as the kernel or FUSE names them.
NETWORK_TYPES = (
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.ceph",
    "fuse.glusterfs",
    "fuse.sshfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "panfs",
    "smb3",
    "virtiofs",
    "wekafs",
)
MOUNTINFO = Path("/proc/self/mountinfo")
ESCAPE = re.compile(r"\\([0-7]{3})")


@frozen
class Mount:
    """root: the folder of the file system that is mounted. options: of the mount and of the file
    system, such as nolock and local_lock."""

    point: str
    type: str
    source: str
    options: str
    root: str = "/"

    @property
    def is_network(self) -> bool:
        return self.type in NETWORK_TYPES

    def __str__(self) -> str:
        return f"{self.type} {self.source} mounted at {self.point}"


@frozen
class MountLocation:
    """Where a path really is: another device or mount means another folder behind the same name."""

    device: int
    mount: Mount | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return str(self.mount) if self.mount else f"device {self.device}"


def locate(path: Path) -> MountLocation:
    """The location of the path, or of its nearest existing parent.

    Raises OSError when the file system does not answer.
    """
    existing = nearest_existing(path.resolve())
    return MountLocation(
        existing.stat().st_dev,
        mount_of(str(existing), parse(read_text(MOUNTINFO, "surrogateescape"))),
    )


def from_json(document: dict[str, Any]) -> MountLocation:
    mount = document["mount"]
    return MountLocation(document["device"], Mount(**mount) if mount else None)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The deepest mount above the path; of several at one point the last: it hides the others."""
    above = [
        mount for mount in reversed(mounts) if f"{path}/".startswith(f"{mount.point.rstrip('/')}/")
    ]
    return max(above, key=lambda mount: len(mount.point), default=None)


def parse(text: str) -> list[Mount]:
    """The mounts in the text of mountinfo; skips lines that are cut off."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        file_system = after.split(" ")
        if not separator or len(fields) < 6 or len(file_system) < 3:
            continue
        mounts.append(
            Mount(
                point=_unescape(fields[4]),
                type=file_system[0],
                source=_unescape(file_system[1]),
                options=f"{fields[5]},{file_system[2]}",
                root=_unescape(fields[3]),
            )
        )
    return mounts


def _unescape(field: str) -> str:
    """The kernel writes spaces and similar bytes as octal numbers."""
    return ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), field)
