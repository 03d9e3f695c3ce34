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
    from collections.abc import Iterator, Mapping

ROOT = Path("/")
# Where the processes of one host share memory, as NCCL's ranks and DataLoader's workers do.
SHARED_MEMORY = Path("dev/shm")
# How proc(5) escapes characters in mountinfo.
ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\134", "\\"))


# Where Python's tempfile looks for a folder; the last is the working folder.
TEMPORARY_VARIABLES = ("TMPDIR", "TEMP", "TMP")
TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/usr/tmp")


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
        "nofile": _limit("Max open files", resource.RLIMIT_NOFILE, root),
        "memlock": _limit("Max locked memory", resource.RLIMIT_MEMLOCK, root),
        "infiniband": infiniband(root),
    }


def cpus(root: Path = ROOT) -> dict[str, Any]:
    """`allowed` is what the kernel really gives: os.cpu_count() ignores affinity and quota."""
    affinity, quota = _affinity(root), cpu_quota(root)
    return {
        "count": _cpu_count(root),
        "affinity": affinity,
        "quota": quota,
        "allowed": affinity if quota is None else min(affinity, quota),
    }


def temporary_folders(environment: Mapping[str, str], root: Path = ROOT) -> list[tuple[str, bool]]:
    """The folders that Python tries for temporary files, in its order, as far as they exist; and
    whether this process can write them."""
    folders = [environment.get(name, "") for name in TEMPORARY_VARIABLES]
    folders += [*TEMPORARY_FOLDERS, environment.get("PWD", "")]
    result = []
    for folder in dict.fromkeys(folders):
        place = root / folder.lstrip("/")
        if os.path.isabs(folder) and place.is_dir():
            result.append((folder, os.access(place, os.W_OK | os.X_OK)))
    return result


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
    quotas = []
    for folder in group_folders("cpu", root):
        quota = read_quota(folder)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def memory_groups(root: Path = ROOT) -> list[dict[str, Any]]:
    """What each of this process's cgroups says about its memory: the limit and what is in use
    without the file cache that can be dropped, in bytes, and how many processes were killed."""
    result = []
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
        for line in _lines(path):
            return line.strip()
    return ""


def named_counters(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    counters = {}
    for line in _lines(path):
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            counters[name] = int(value)
    return counters


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


def group_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of this process's cgroup and of each group above it, of v1 and v2; none where the
    kernel shows none."""
    try:
        mounts = parse_mounts((root / "proc/self/mountinfo").read_text(errors="replace"))
        groups = parse_groups((root / "proc/self/cgroup").read_text(errors="replace"))
    except OSError:
        return
    for mount in mounts:
        if mount.type == "cgroup" and controller in mount.options:
            group = groups.get(controller)
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


def _limit(label: str, kind: int, root: Path) -> int | None:
    """The soft limit; None if there is none."""
    if root != ROOT:
        for line in _lines(root / "proc/self/limits"):
            if line.startswith(label):
                soft_text = line[len(label) :].split()[0]
                return None if soft_text == "unlimited" else int(soft_text)
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _affinity(root: Path) -> int:
    """How many CPUs this process may run on."""
    if root != ROOT:
        for line in _lines(root / "proc/self/status"):
            if line.startswith("Cpus_allowed_list:"):
                return _count_list(line.split(":")[1])
    return len(os.sched_getaffinity(0))


def _cpu_count(root: Path) -> int | None:
    if root != ROOT:
        for line in _lines(root / "sys/devices/system/cpu/online"):
            return _count_list(line)
    return os.cpu_count()


def _count_list(text: str) -> int:
    """How many numbers a list such as `0-3,8` has."""
    count = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
