"""Errors of the operating system in our terms: which file, which disk, the system's reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.core.errors import NoSpace, ProvisionError, SystemRefused
from provision.core.paths import nearest_existing
from provision_runtime.report.text import format_bytes

# ENOSPC and EDQUOT in the words of the C library and of Rust.
_DISK_FULL = ("no space left", "os error 28", "quota exceeded", "os error 122")
FREE_SPACE = "Free space there and run the same command again."
_LIMITS = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.EFBIG)
# A lock of 42 packages aborted with 0.6 GB, and was made with 1 GB (2 cores: threads need more).
ADDRESS_SPACE = 2 << 30


def is_disk_full(error: OSError) -> bool:
    """Whether the disk is full, or the user's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def tool_without_space(output: str, folder: Path | None = None) -> NoSpace | None:
    """The error of a tool whose output says that the disk is full, or the user's quota; None for
    other outputs. folder: where it writes, unless its output says it."""
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if any(phrase in line.lower() for phrase in _DISK_FULL)]
    if not lines:
        return None
    disk = f"The disk or quota of {folder}" if folder else "A disk or quota"
    return NoSpace(f"{disk} is full: {lines[-1].rstrip('.')}.", advice=FREE_SPACE, details=output)


def require_space(folder: Path, size: int, purpose: str, advice: str) -> None:
    """Raise NoSpace if a folder's disk has fewer bytes free."""
    from shutil import disk_usage

    free = disk_usage(folder).free
    if free < size:
        raise NoSpace(
            f"{purpose} needs about {format_bytes(size)} in {folder}, where {format_bytes(free)} are "
            "free.",
            advice=advice,
        )


@contextmanager
def disk_full_raises(path: Path, advice: str = FREE_SPACE) -> Iterator[None]:
    """Raise NoSpace where the disk is full or the quota used up; other errors pass. path: as in
    `from_system`."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise _no_space(error, path, advice) from error
        raise


@contextmanager
def named_errors(file: Path | str) -> Iterator[None]:
    """Errors of this block name a file, unless they do: a failed write does not say where."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(file)
        raise


def _no_space(error: OSError, path: Path | None, advice: str) -> NoSpace:
    reason = "The disk is full"
    if error.errno == errno.EDQUOT:
        reason = "The quota of your user or group is used up"
    # A copy names the file that it reads first.
    file = error.filename2 or error.filename or path
    if file is None:
        return NoSpace(f"{reason}: {error.strerror}.", advice=advice)
    return NoSpace(f"{reason}: {file} was not written{_free_space(file)}.", advice=advice)


def _free_space(file: str | bytes | Path) -> str:
    try:
        folder = nearest_existing(Path(os.fsdecode(file)).resolve())
        return f"; {free_space(folder)} are free in {folder} now"
    except OSError:  # removed or unreachable in the meantime
        return ""


def free_space(folder: Path) -> str:
    status = os.statvfs(folder)
    free = format_bytes(status.f_bavail * status.f_frsize)
    # Some file systems (btrfs) count no inodes: zero of zero.
    files = f" and {status.f_favail} files" if status.f_files else ""
    return free + files


def from_system(error: OSError, path: Path | None = None) -> ProvisionError:
    """A system error in our terms: which file, the system's reason, and what to do.

    path: what was read or written, for errors that do not name their file.
    """
    if is_disk_full(error):
        return _no_space(error, path, FREE_SPACE)
    file = error.filename or path or "a file"
    if error.filename2:
        file = f"{file} -> {error.filename2}"
    advice = "--debug shows where."
    if error.errno in _LIMITS:
        advice = "`ulimit -a` shows the limits of this shell, and `ulimit` changes them."
    return SystemRefused(f"The system refused {file}: {error.strerror or error}.", advice=advice)


def require_address_space() -> None:
    """Raise SystemRefused where solvers and installers, which are not ours, would abort."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise SystemRefused(
            f"This shell limits the memory of a process to {format_bytes(limit)} (ulimit -v), and "
            f"solvers and installers need {format_bytes(ADDRESS_SPACE)}.",
            advice="Raise it: `ulimit -v unlimited`.",
        )
