"""Probes: the user's home and quotas, and lines of shell start files that interfere with
environments."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..report.text import format_bytes
from .probe import Probe, observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..report.diagnosis import ObservedFinding
    from .machine import Machine

# The next download may fill a quota that is used to this share.
NEARLY_FULL = 0.95
# A larger file is no start file.
START_FILE_BYTES = 1_000_000
# In the home, in the order in which shells read them.
START_FILES = (
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bashrc",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".login",
    ".cshrc",
    ".tcshrc",
    ".config/fish/config.fish",
)
VARIABLES = {
    "PYTHONPATH": "its packages go before those of every environment",
    "PYTHONHOME": "no other Python starts with it",
    "PYTHONUSERBASE": "every Python of that version imports packages from it",
    "LD_LIBRARY_PATH": "its libraries (CUDA, NCCL, libstdc++) go before those of torch",
    "LD_PRELOAD": "its libraries go before all others",
}
_ASSIGNMENT = re.compile(
    r"^(?:export\s+|setenv\s+|set\s+-[gxU]+\s+|typeset\s+-x\s+)?(?:\S+=\S*\s+)*"
    r"(" + "|".join(VARIABLES) + r")(?:\+?=|\s+)\s*(\S.*)?$"
)
_CONDA_BLOCKS = ("# >>> conda initialize >>>", "# >>> mamba initialize >>>")
_CONDA_COMMAND = "conda config --set auto_activate_base false"
_ACTIVATE = re.compile(
    r"^(?:conda|mamba|micromamba)\s+activate\b|^(?:source|\.)\s+\S*bin/activate\b"
)
_MODULE = re.compile(
    r"^(?:module|ml)\s+(?:load\s+|add\s+)?(?:\S+\s+)*?"
    r"((?:cuda|cudnn|nccl|python|anaconda|miniconda|pytorch)\S*)",
    re.IGNORECASE,
)


def basics(machine: Machine) -> Iterator[ObservedFinding]:
    """What most programs rely on."""
    if not machine.is_real:
        return
    problem = null_device_problem(os.devnull)
    if problem:
        yield observation("null-device", f"{os.devnull} {problem}", f"stat {os.devnull}", problem)
    if not os.path.exists("/proc/self"):
        yield observation("proc-missing", "/proc is not mounted", "stat /proc/self", "missing")
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        message = f"the user {os.getuid()} is not in the user database"
        yield observation("user-unnamed", message, "getpwuid", os.getuid())


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


def home(machine: Machine) -> Iterator[ObservedFinding]:
    folder = machine.path(machine.home)
    problem = ""
    if not folder.is_dir():
        problem = "there is no such folder"
    elif os.statvfs(folder).f_flag & os.ST_RDONLY:
        problem = "it is mounted read-only"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = "you may not write there"
    if problem:
        message = f"the home {machine.home} cannot be written: {problem}"
        yield observation("home-unwritable", message, f"statvfs {machine.home}", problem)


@dataclass(frozen=True)
class Quota:
    """A user's quota of a file system, as quota(1) prints it. A limit of 0 means no limit."""

    file_system: str
    used_bytes: int
    limit_bytes: int
    used_files: int
    limit_files: int


# `quota -w -p`: file system, KiB used (a star: above the soft limit), soft and hard limit, grace,
# and the same for files (quota(1), quota-tools 4).
_QUOTA_ROW = re.compile(
    r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s*$"
)


def parse_quota(text: str) -> list[Quota]:
    """The quotas in what `quota -w -p` printed. Of two limits, the soft one is the tighter."""
    quotas = []
    for line in text.splitlines():
        match = _QUOTA_ROW.match(line)
        if match is None:
            continue
        used, soft, hard, used_files, soft_files, hard_files = map(int, match.groups()[1:])
        quotas.append(
            Quota(
                file_system=match[1],
                used_bytes=used * 1024,
                limit_bytes=(soft or hard) * 1024,
                used_files=used_files,
                limit_files=soft_files or hard_files,
            )
        )
    return quotas


def quotas(machine: Machine) -> Iterator[ObservedFinding]:
    output = machine.run("quota", "-w", "-p")
    for quota in parse_quota(output.text if output else ""):
        used, limit = format_bytes(quota.used_bytes), format_bytes(quota.limit_bytes)
        rows = (
            (quota.used_bytes, quota.limit_bytes, f"{used} of {limit}"),
            (
                quota.used_files,
                quota.limit_files,
                f"{quota.used_files} of {quota.limit_files} files",
            ),
        )
        for count, most, text in rows:
            if not most or count < NEARLY_FULL * most:
                continue
            finding_id, state = "quota-low", "nearly used up"
            if count >= most:
                finding_id, state = "quota-full", "used up"
            message = f"the quota of {quota.file_system} is {state}: {text}"
            yield observation(finding_id, message, "quota -w -p", text)


def start_files(machine: Machine) -> Iterator[ObservedFinding]:
    """Each line that changes what environments see, in every new shell."""
    for name in START_FILES:
        path = os.path.join(machine.home, name)
        file = machine.path(path)
        if not file.is_file() or file.stat().st_size > START_FILE_BYTES:
            continue
        for number, line in enumerate(machine.read(path).splitlines(), start=1):
            problem = line_problem(line.strip())
            if not problem:
                continue
            command = f"${{EDITOR:-vi}} +{number} {shlex.quote(path)}"
            if line.strip() in _CONDA_BLOCKS:
                command = _CONDA_COMMAND
            message = f"~/{name}:{number} {problem}"
            source = f"{path}:{number}"
            yield observation("start-file", message, source, line.strip()[:80], command)


def line_problem(line: str) -> str:
    """How a line of a start file interferes; empty if it does not."""
    if line in _CONDA_BLOCKS:
        return "lets conda put its own Python first in every shell"
    if line.startswith("#"):
        return ""
    match = _ASSIGNMENT.match(line)
    if match and match[2]:
        return f"sets {match[1]}: {VARIABLES[match[1]]}"
    if _ACTIVATE.match(line):
        return "activates another environment in every shell"
    match = _MODULE.match(line)
    if match:
        return f"loads the module {match[1]} in every shell, whose libraries go before torch's"
    return ""


PROBES = (
    Probe("basics", ("null-device", "proc-missing", "user-unnamed"), basics),
    Probe("home", ("home-unwritable",), home),
    Probe("quotas", ("quota-full", "quota-low"), quotas),
    Probe("start files", ("start-file",), start_files),
)
