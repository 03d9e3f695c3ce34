"""What this process may use: CPUs (affinity and cgroup quota), shared memory, open files, locked
memory.

Reads /proc, /sys and the resource limits; judges nothing. `root` is the folder above them, so that
a test can make its own.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Optional, TypedDict

from ..fs import mounts
from ..fs.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .model import CpuFacts, InfinibandFacts, LimitFacts, SharedMemory

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
        "nofile": _limit("Max open files", resource.RLIMIT_NOFILE, root),
        "memlock": _limit("Max locked memory", resource.RLIMIT_MEMLOCK, root),
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


def infiniband(root: Path = ROOT) -> InfinibandFacts:
    adapters = sorted(path.name for path in (root / "sys/class/infiniband").glob("*"))
    devices = sorted((root / "dev/infiniband").glob("uverbs*"))
    usable = [path.name for path in devices if os.access(path, os.R_OK | os.W_OK)]
    return {"adapters": adapters, "usable": usable}


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many CPUs the tightest of this process's cgroups allows; None without a quota."""
    quotas = [read_quota(folder) for folder in group_folders("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_groups(root: Path = ROOT) -> list[MemoryGroup]:
    """The memory of each of this process's cgroups."""
    result: list[MemoryGroup] = []
    for folder in group_folders("memory", root):
        limit = _first_line(folder / "memory.max", folder / "memory.limit_in_bytes")
        usage = _first_line(folder / "memory.current", folder / "memory.usage_in_bytes")
        counters = named_counters(folder / "memory.stat")
        cache = counters.get("total_inactive_file", counters.get("inactive_file", 0))
        kills = {
            **named_counters(folder / "memory.oom_control"),
            **named_counters(folder / "memory.events"),
        }
        result.append(
            {
                "folder": str(folder),
                # v1 writes nearly 2**63 for no limit.
                "limit": int(limit) if limit.isdigit() and int(limit) < 1 << 60 else None,
                "usage": max(0, int(usage) - cache) if usage.isdigit() else None,
                "oom_kills": kills.get("oom_kill", 0),
            }
        )
    return result


def _first_line(*paths: Path) -> str:
    for path in paths:
        for line in read_text(path).splitlines():
            return line.strip()
    return ""


def named_counters(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    counters = {}
    for line in read_text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            counters[name] = int(value)
    return counters


def parse_groups(text: str) -> dict[str, str]:
    """Controller -> path of the group; the single hierarchy of v2 has an empty name."""
    groups = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[0].isdigit() and fields[2]:
            for controller in fields[1].split(","):
                groups[controller] = fields[2]
    return groups


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
    text = read_text(folder / "cpu.max") or " ".join(
        read_text(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    )
    match = re.match(r"(\d+)\s+([1-9]\d*)\b", text)
    quota = int(match[1]) / int(match[2]) if match else 0.0
    return round(quota, 2) or None


def _limit(label: str, kind: int, root: Path) -> int | None:
    """The soft limit; None if there is none."""
    text = read_text(root / "proc/self/limits") if root != ROOT else ""
    match = re.search(rf"(?m)^{label} +(\S+)", text)
    if match:
        return int(match[1]) if match[1].isdigit() else None
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _affinity(root: Path) -> int:
    """How many CPUs this process may run on."""
    text = read_text(root / "proc/self/status") if root != ROOT else ""
    match = re.search(r"(?m)^Cpus_allowed_list:(.*)$", text)
    return _count_list(match[1]) if match else len(os.sched_getaffinity(0))


def _count_list(text: str) -> int:
    """How many numbers a list such as `0-3,8` has."""
    count = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
