"""Probes: what most programs rely on, the user's home and quotas."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from ..report.text import format_bytes
from .probe import Findings, Probes, observation

if TYPE_CHECKING:
    from .machine import Machine

# The next download may fill a quota that is used to this share.
NEARLY_FULL = 0.95
# `quota -w -p`: file system, KiB used (a star: above the soft limit), soft and hard limit, grace,
# and the same for files (quota(1), quota-tools 4).
QUOTA_ROW = re.compile(
    r"(?m)^[ \t]*(\S+)[ \t]+(\d+)\*?[ \t]+(\d+)[ \t]+(\d+)[ \t]+\S+[ \t]+(\d+)\*?[ \t]+(\d+)"
    r"[ \t]+(\d+)[ \t]+\S+[ \t]*$"
)


def basics(machine: Machine) -> Findings:
    """What most programs rely on."""
    if not machine.is_real:
        return
    if problem := null_device_problem(os.devnull):
        yield observation("null-device", f"{os.devnull} {problem}", f"stat {os.devnull}", problem)
    if not os.path.exists("/proc/self"):
        yield observation("proc-missing", "/proc is not mounted", "stat /proc/self", "missing")


def null_device_problem(path: str) -> str:
    """The fault of /dev/null, or an empty text."""
    try:
        status = os.stat(path)
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(1, 3):
        return "is not the null device, but another file"
    if status.st_mode & 0o666 != 0o666:
        return f"is not readable and writable for everyone: its mode is {status.st_mode & 0o777:o}"
    return ""


def home(machine: Machine) -> Findings:
    folder = machine.path(machine.home)
    problem = ""
    if not folder.is_dir():
        problem = "there is no such folder"
    elif os.statvfs(folder).f_flag & os.ST_RDONLY:
        problem = "it is mounted read-only"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = "you may not write there"
    if problem:
        yield observation(
            "home-unwritable",
            f"the home {machine.home} cannot be written: {problem}",
            f"statvfs {machine.home}",
            problem,
        )


def quotas(machine: Machine) -> Findings:
    for row in QUOTA_ROW.finditer(machine.text("quota", "-w", "-p")):
        used_kib, soft, hard, files, soft_files, hard_files = map(int, row.groups()[1:])
        # Of two limits, the soft one is the tighter; 0 means no limit.
        kib_limit, file_limit = soft or hard, soft_files or hard_files
        used, limit = format_bytes(used_kib * 1024), format_bytes(kib_limit * 1024)
        for count, most, text in (
            (used_kib, kib_limit, f"{used} of {limit}"),
            (files, file_limit, f"{files} of {file_limit} files"),
        ):
            if most and count >= NEARLY_FULL * most:
                is_full = count >= most
                state = "used up" if is_full else "nearly used up"
                id = "quota-full" if is_full else "quota-low"
                yield observation(
                    id, f"the quota of {row[1]} is {state}: {text}", "quota -w -p", text
                )


PROBES: Probes = {
    "basics": basics,
    "home": home,
    "quotas": quotas,
}
