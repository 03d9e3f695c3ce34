"""Locks between processes, also of several containers or hosts that share a disk.

All are kernel locks (flock), released when a process is killed. A lock file is empty and never
written, so a run that finds nothing to do leaves no trace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from provision.core.errors import InUse, SystemRefused
from provision.core.paths import Folders, make_private_directory
from provision.core.project import PROJECTS
from provision.core.types import Progress
from provision_runtime.node.trust import Trust

_FOLDER = "locks"
# unsupported: the file system has no locks, so no process can hold one there.
LockState = Literal["locked", "busy", "unsupported"]


def lock_files(folders: Folders) -> list[Path]:
    """The files that `environment_lock` locks, one for each name of each project; most are free."""
    projects = (folders.data, *(folders.data / PROJECTS).glob("*"))
    return sorted(path for project in projects for path in (project / _FOLDER).glob("*"))


@contextmanager
def environment_lock(
    folders: Folders, name: str, progress: Progress, *, wait: bool = True
) -> Iterator[None]:
    """Lock an environment's name in its project; one that begins with `+` is of all projects.

    If another process holds it, says which one and waits; without `wait`, raises InUse.
    """
    directory = (folders.data if name.startswith("+") else folders.project_data) / _FOLDER
    make_private_directory(directory)
    # A lab may put a data folder into the hands of one account.
    problem = Trust(trusted_user=folders.data.stat().st_uid).path_problem(str(folders.data))
    if problem is not None:
        progress.warn(
            f"other users can change the programs that you run from {folders.data}: {problem}. "
            f"Forbid it (chmod go-w {shlex.quote(str(folders.data))}), or set PROVISION_DATA to "
            "another folder"
        )
    descriptor = open_lock_file(directory / name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _describe_holder(os.fstat(descriptor).st_ino)
            if not wait:
                raise InUse(
                    f"{name} is in use by {holder}.",
                    advice="Wait for it, and repeat the command.",
                ) from None
            progress.info(f"waiting for {holder}, which is using {name}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise SystemRefused(
                f"The disk of {folders.data} cannot lock files: {error.strerror}.",
                advice="Set PROVISION_DATA to a folder on another disk.",
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Lock a file, which is created if missing; waits as long as another process holds it."""
    descriptor = open_lock_file(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> LockState:
    """Lock an open file or directory, without waiting, until its descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "busy"
    except OSError:
        return "unsupported"
    return "locked"


def open_lock_file(path: Path) -> int:
    """The descriptor of a lock file, which is created if missing.

    Opened for writing where we may: on NFS nothing else can be locked exclusively. Raises
    SystemRefused for a link: in a folder that others may write to, it could name any file of ours.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
        except PermissionError:
            return os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise SystemRefused(
            f"The lock file {path} is a link.",
            advice="Remove it. Whoever made it can write to your data folder; PROVISION_DATA names "
            "another one.",
        ) from error


def _describe_holder(inode: int) -> str:
    """The process that has locked a file, from the kernel's list.

    A line reads `1: FLOCK  ADVISORY  WRITE <pid> <major>:<minor>:<inode> 0 EOF`.
    """
    try:
        for line in Path("/proc/locks").read_text().splitlines():
            row = line.split()
            if len(row) > 5 and row[1] == "FLOCK" and row[5].endswith(f":{inode}"):
                command = Path(f"/proc/{row[4]}/cmdline").read_bytes().decode(errors="replace")
                return f"process {row[4]} (`{command.replace(chr(0), ' ').strip()}`)"
    except OSError:
        pass
    return "another process"
