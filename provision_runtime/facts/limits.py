"""What this process may use: CPUs (affinity and cgroup quota), shared memory, open files, locked
memory.

Reads /proc, /sys and the resource limits; judges nothing. `root` is the folder above them, so that
a test can make its own.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/")
# Where the processes of one host share memory, as NCCL's ranks and DataLoader's workers do.
SHARED_MEMORY = Path("dev/shm")
# How proc(5) escapes characters in mountinfo.
ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\134", "\\"))


@dataclass(frozen=True)
class MountLine:
    """A line of /proc/self/mountinfo: the folder `root` of that file system is mounted at
    `point`."""

    type: str
    root: str
    point: str
    options: tuple[str, ...]


def collect(root: Path = ROOT) -> dict[str, Any]:
    return {
        "cpus": cpus(root),
        "shm": shared_memory(root),
        "nofile": _limit(resource.RLIMIT_NOFILE),
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "infiniband": infiniband(root),
    }


def cpus(root: Path = ROOT) -> dict[str, Any]:
    """`allowed` is what the kernel really gives: os.cpu_count() ignores affinity and quota."""
    affinity, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    return {
        "count": os.cpu_count(),
        "affinity": affinity,
        "quota": quota,
        "allowed": affinity if quota is None else min(affinity, quota),
    }


def shared_memory(root: Path = ROOT) -> dict[str, int] | None:
    """Sizes in bytes. `device` distinguishes file systems: two containers of one host do not share
    theirs."""
    try:
        status = os.statvfs(root / SHARED_MEMORY)
        device = os.stat(root / SHARED_MEMORY).st_dev
    except OSError:
        return None
    return {
        "bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
        "device": device,
    }


def infiniband(root: Path = ROOT) -> dict[str, list[str]]:
    """The adapters that the kernel shows, and the devices that this process may open: a container
    may have the former without the latter."""
    adapters = sorted(path.name for path in (root / "sys/class/infiniband").glob("*"))
    devices = sorted((root / "dev/infiniband").glob("uverbs*"))
    usable = [path.name for path in devices if os.access(path, os.R_OK | os.W_OK)]
    return {"adapters": adapters, "usable": usable}


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many CPUs the tightest of this process's cgroups allows; None without a quota."""
    try:
        mounts = parse_mounts((root / "proc/self/mountinfo").read_text(errors="replace"))
        groups = parse_groups((root / "proc/self/cgroup").read_text(errors="replace"))
    except OSError:
        return None
    quotas = []
    for folder in quota_folders(mounts, groups, root):
        quota = read_quota(folder)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def parse_mounts(text: str) -> list[MountLine]:
    """Skips lines that are cut off."""
    # id parent major:minor root point options [optional fields] - type source super-options
    mounts = []
    for line in text.splitlines():
        fields = line.split()
        if "-" not in fields[6:]:
            continue
        dash = fields.index("-", 6)
        if len(fields) > dash + 3:
            root, point = _unescape(fields[3]), _unescape(fields[4])
            options = tuple(fields[dash + 3].split(","))
            mounts.append(MountLine(fields[dash + 1], root, point, options))
    return mounts


def parse_groups(text: str) -> dict[str, str]:
    """Controller -> path of the group; the single hierarchy of v2 has an empty name."""
    groups = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[0].isdigit() and fields[2]:
            for controller in fields[1].split(","):
                groups[controller] = fields[2]
    return groups


def quota_folders(
    mounts: list[MountLine], groups: dict[str, str], root: Path = ROOT
) -> Iterator[Path]:
    """Where quotas of this process may be: its group and each group above it, of v1 and v2."""
    for mount in mounts:
        if mount.type == "cgroup" and "cpu" in mount.options:
            group = groups.get("cpu")
        elif mount.type == "cgroup2":
            group = groups.get("")
        else:
            group = None
        if group is None:
            continue
        top = root / mount.point.lstrip("/")
        folder = top
        # In a container with the host's cgroup names, the path does not exist below this mount: its
        # top is our group.
        if f"{group}/".startswith(mount.root.rstrip("/") + "/"):
            folder = top / os.path.relpath(group, mount.root)
        for candidate in (folder, *folder.parents):
            if candidate == top or top in candidate.parents:
                yield candidate


def read_quota(folder: Path) -> float | None:
    """The quota of one group, in CPUs."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            return parse_quota(" ".join((folder / name).read_text() for name in names))
        except OSError:
            continue
    return None


def parse_quota(text: str) -> float | None:
    """`quota period` in microseconds, as in cpu.max; None if there is no quota."""
    fields = text.split()
    try:
        allowed = float(fields[0]) / float(fields[1])
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return round(allowed, 2) if allowed > 0 else None


def _unescape(text: str) -> str:
    for code, character in ESCAPES:
        text = text.replace(code, character)
    return text


def _limit(kind: int) -> int | None:
    """The soft limit; None if there is none."""
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft
