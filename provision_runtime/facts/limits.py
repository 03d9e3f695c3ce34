"""What this process may use: CPUs (affinity and cgroup quota), shared memory, open files, locked memory.

Owns /proc, /sys and the resource limits; judges nothing. `root` is where they lie, so that a test can lay them out itself.
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
# Where the processes of one host share memory: NCCL's ranks and DataLoader's workers do.
SHARED_MEMORY = Path("dev/shm")


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo: `root` is the folder of that file system which is seen at `point`."""

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
    """`allowed` is what the kernel will really give: os.cpu_count() knows neither affinity nor quota."""
    affinity, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    return {
        "count": os.cpu_count(),
        "affinity": affinity,
        "quota": quota,
        "allowed": affinity if quota is None else min(affinity, quota),
    }


def shared_memory(root: Path = ROOT) -> dict[str, int] | None:
    """Sizes in bytes; `device` tells two file systems apart, since two containers of one host do not share theirs."""
    try:
        found = os.statvfs(root / SHARED_MEMORY)
        device = os.stat(root / SHARED_MEMORY).st_dev
    except OSError:
        return None
    return {
        "bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "device": device,
    }


def infiniband(root: Path = ROOT) -> dict[str, list[str]]:
    """The adapters that the kernel shows, and those of them that this process may open: a container sees them without the latter."""
    adapters = sorted(path.name for path in (root / "sys/class/infiniband").glob("*"))
    nodes = sorted(path for path in (root / "dev/infiniband").glob("uverbs*"))
    return {
        "adapters": adapters,
        "usable": [path.name for path in nodes if os.access(path, os.R_OK | os.W_OK)],
    }


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time per period, by the tightest of the cgroups that hold this process; None without a quota."""
    try:
        mounts = parse_mounts((root / "proc/self/mountinfo").read_text(errors="replace"))
        groups = parse_groups((root / "proc/self/cgroup").read_text(errors="replace"))
    except OSError:
        return None
    quotas = (read_quota(folder) for folder in quota_folders(mounts, groups, root))
    return min((quota for quota in quotas if quota is not None), default=None)


def parse_mounts(text: str) -> list[Mount]:
    # id parent major:minor root point options [optional fields] - type source super-options
    found = []
    for line in text.splitlines():
        fields = line.split()
        if "-" not in fields[6:]:
            continue
        dash = fields.index("-", 6)
        if len(fields) > dash + 3:
            found.append(
                Mount(
                    fields[dash + 1],
                    _unescape(fields[3]),
                    _unescape(fields[4]),
                    tuple(fields[dash + 3].split(",")),
                )
            )
    return found


def parse_groups(text: str) -> dict[str, str]:
    """Controller -> path of the group; the one hierarchy of v2 has the empty name."""
    found = {}
    for line in text.splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number.isdigit() and path:
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def quota_folders(mounts: list[Mount], groups: dict[str, str], root: Path = ROOT) -> Iterator[Path]:
    """Where quotas of this process may be written: its group, and each group above it, of v1 and v2."""
    for mount in mounts:
        is_v1 = mount.type == "cgroup" and "cpu" in mount.options
        group = groups.get("cpu" if is_v1 else "") if is_v1 or mount.type == "cgroup2" else None
        if group is None:
            continue
        # In a container with the host's cgroup names the path leads to nothing under this mount: its top is our group.
        is_below = (group + "/").startswith(mount.root.rstrip("/") + "/")
        top = root / mount.point.lstrip("/")
        folder = top / os.path.relpath(group, mount.root) if is_below else top
        yield from (one for one in (folder, *folder.parents) if one == top or top in one.parents)


def read_quota(folder: Path) -> float | None:
    """The quota of one group, in CPUs."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            return parse_quota(" ".join((folder / name).read_text() for name in names))
        except OSError:
            continue
    return None


def parse_quota(text: str) -> float | None:
    """`quota period` in microseconds, as cpu.max holds it."""
    quota, period = (*text.split(), "", "")[:2]
    try:
        allowed = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):
        return None
    return round(allowed, 2) if allowed > 0 else None


def _unescape(text: str) -> str:
    """mountinfo writes blanks and backslashes in octal."""
    for code, meant in (("\\040", " "), ("\\011", "\t"), ("\\134", "\\")):
        text = text.replace(code, meant)
    return text


def _limit(kind: int) -> int | None:
    """The limit in force; None where there is none."""
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft
