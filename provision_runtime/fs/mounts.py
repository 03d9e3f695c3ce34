"""Which file system a path lies on, as the kernel says in /proc/self/mountinfo. `parse` and `mount_of` are pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MOUNTINFO = Path("/proc/self/mountinfo")
ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    point: str
    type: str
    source: str
    # Of this mount and of the file system: nolock, local_lock and the like stand here.
    options: str

    def __str__(self) -> str:
        return f"{self.type} {self.source} mounted at {self.point}"


@dataclass(frozen=True)
class Location:
    """Where a path really lies: another device or another mount means another folder behind the same name."""

    device: int
    mount: Mount | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return str(self.mount) if self.mount else f"device {self.device}"


def locate(path: Path) -> Location:
    """Of the path, or of its nearest parent that exists. Raises OSError where the file system does not answer."""
    there = path.resolve()
    while not there.exists():
        there = there.parent
    return Location(there.stat().st_dev, mount_of(str(there), _mounts()))


def from_json(said: dict[str, Any]) -> Location:
    return Location(said["device"], Mount(**said["mount"]) if said["mount"] else None)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The deepest mount above the path; of several at one point the last, which covers the others."""
    above = [
        mount
        for mount in mounts
        if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
    ]
    return (
        max(enumerate(above), key=lambda place: (len(place[1].point), place[0]))[1]
        if above
        else None
    )


def parse(text: str) -> list[Mount]:
    """Lines of mountinfo; those that are cut off are left out."""
    return [mount for mount in map(_mount, text.splitlines()) if mount is not None]


def _mount(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    first, second = before.split(" "), after.split(" ")
    if not separator or len(first) < 6 or len(second) < 3:
        return None
    return Mount(_plain(first[4]), second[0], _plain(second[1]), f"{first[5]},{second[2]}")


def _plain(word: str) -> str:
    """Spaces and the like are written as octal numbers, byte by byte."""
    return ESCAPE.sub(lambda found: chr(int(found.group(1), 8)), word)


def _mounts() -> list[Mount]:
    try:
        return parse(MOUNTINFO.read_text(errors="surrogateescape"))
    except OSError:
        return []
