"""What this process may use: CPUs (affinity and cgroup quota), shared memory, open files, locked
memory.

Reads /proc, /sys and the resource limits; judges nothing. `root` is the folder above them, so that
a test can make its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Optional, TypedDict

from ..fs import mounts
from ..fs.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .model import CpuFacts, LimitFacts, SharedMemory

ROOT = Path("/")
# Where the processes of one host share memory, as NCCL's ranks and DataLoader's workers do.
SHARED_MEMORY = Path("dev/shm")
# Where Python's tempfile looks for a folder; the last is the working folder.
TEMPORARY_VARIABLES = ("TMPDIR", "TEMP", "TMP")
TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/usr/tmp")


class MemoryGroup(TypedDict):
    """A cgroup. limit, usage: bytes; usage is without the file cache that can be dropped."""

    folder: str
    limit: Optional[int]
    usage: Optional[int]
    oom_kills: int


def collect(root: Path = ROOT) -> LimitFacts:
    return {
        "cpus": cpus(root),
        "shm": shared_memory(root),
        "nofile": _limit("Max open files", root),
        "memlock": _limit("Max locked memory", root),
        "infiniband": infiniband(root),
    }


def cpus(root: Path = ROOT) -> CpuFacts:
    affinity, quota = _affinity(root), cpu_quota(root)
    online = read_text(root / "sys/devices/system/cpu/online")
    return {
        "count": _count_list(online) if online and root != ROOT else os.cpu_count(),
        "affinity": affinity,
        "quota": quota,
        "allowed": affinity if quota is None else min(affinity, quota),
    }


def temporary_folders(environment: Mapping[str, str], root: Path = ROOT) -> dict[str, bool]:
    """The folders that Python tries for temporary files, in its order, as far as they exist; and
    whether this process can write them."""
    folders = [environment.get(name, "") for name in TEMPORARY_VARIABLES]
    folders += [*TEMPORARY_FOLDERS, environment.get("PWD", "")]
    result = {}
    for folder in folders:
        path = root / folder.lstrip("/")
        if os.path.isabs(folder) and path.is_dir():
            result[folder] = os.access(path, os.W_OK | os.X_OK)
    return result


def shared_memory(root: Path = ROOT) -> SharedMemory | None:
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


def infiniband(root: Path = ROOT) -> list[str]:
    """The devices of InfiniBand and RoCE adapters that this process may open: a container may have
    none of them."""
    devices = sorted((root / "dev/infiniband").glob("uverbs*"))
    return [path.name for path in devices if os.access(path, os.R_OK | os.W_OK)]


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many CPUs the tightest of this process's cgroups allows; None without a quota."""
    quotas = [read_quota(folder) for folder in group_folders("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_groups(root: Path = ROOT) -> list[MemoryGroup]:
    """The memory of each of this process's cgroups."""
    result: list[MemoryGroup] = []
    for folder in group_folders("memory", root):
        # Of v2, or v1, which writes nearly 2**63 for no limit.
        limit = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        usage = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
        counters = named_counters(folder / "memory.stat")
        cache = counters.get("total_inactive_file", counters.get("inactive_file", 0))
        kills = named_counters(folder / "memory.events", folder / "memory.oom_control")
        is_limited = limit.strip().isdigit() and int(limit) < 1 << 60
        result.append(
            {
                "folder": str(folder),
                "limit": int(limit) if is_limited else None,
                "usage": max(0, int(usage) - cache) if usage.strip().isdigit() else None,
                "oom_kills": kills.get("oom_kill", 0),
            }
        )
    return result


def named_counters(*paths: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    text = "\n".join(map(read_text, paths))
    return {name: int(value) for name, value in re.findall(r"(?m)^(\S+) +(\d+) *$", text)}


def parse_groups(text: str) -> dict[str, str]:
    """Controller -> path of the group; the single hierarchy of v2 has an empty name."""
    return {
        controller: path
        for names, path in re.findall(r"(?m)^\d+:([^:\n]*):(.+)$", text)
        for controller in names.split(",")
    }


def group_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of this process's cgroup and of each group above it, of v1 and v2; none where the
    kernel shows none."""
    groups = parse_groups(read_text(root / "proc/self/cgroup"))
    for mount in mounts.parse(read_text(root / "proc/self/mountinfo")):
        group = None
        if mount.type == "cgroup" and controller in mount.options.split(","):
            group = groups.get(controller)
        elif mount.type == "cgroup2":
            group = groups.get("")
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
    """The quota of one group, in CPUs: `quota period` in microseconds, as in cpu.max."""
    match = re.match(
        r"(\d+)\s+([1-9]\d*)\b",
        read_text(folder / "cpu.max")
        or " ".join(read_text(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    )
    quota = int(match[1]) / int(match[2]) if match else 0.0
    return round(quota, 2) or None


def _limit(label: str, root: Path) -> int | None:
    """The soft limit; None if there is none, and without /proc."""
    match = re.search(rf"(?m)^{label} +(\d+)", read_text(root / "proc/self/limits"))
    return int(match[1]) if match else None


def _affinity(root: Path) -> int:
    """How many CPUs this process may run on."""
    match = re.search(r"(?m)^Cpus_allowed_list:(.*)$", read_text(root / "proc/self/status"))
    return _count_list(match[1]) if match else len(os.sched_getaffinity(0))


def _count_list(text: str) -> int:
    """How many numbers a list such as `0-3,8` has."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)
