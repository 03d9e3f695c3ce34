"""Files and directories that change in one step: readers see the old one or the new one, whole.

A file is replaced by `atomic_write`. A directory is built under `staging_path`, and
`replace_directory` exchanges the two.
"""

from __future__ import annotations

import glob
import os
import re
import time
from pathlib import Path

from provision.core.paths import make_private_directory
from provision.core.system_errors import named_errors

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
POLL_S = 0.05
QUIET_S, QUIET_TIMEOUT_S = 1.0, 20.0
# How the names of files end that `atomic_write` has not finished.
_UNFINISHED = ".provision-unfinished"
# The names of `staging_path` and `backup_path`.
UNFINISHED = re.compile(r"\.(.+)\.provision-(?:building|replaced)")


def atomic_write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Replace a file, or leave the old one as it was. Creates missing parent directories.

    The bytes are on the disk before the name changes. Text is written as UTF-8. A device, a pipe and
    an open file, such as /dev/null and /dev/stdout, is written to: it stays what it is.
    """
    import tempfile  # takes 2 ms, and few verbs write

    if isinstance(content, str):
        content = content.encode("utf-8")
    if path.parent == Path("/dev") or path.is_char_device() or path.is_fifo():
        path.write_bytes(content)
        return
    # Files of a lab's repository: its group may share them, never everybody.
    make_private_directory(path.parent, mode=0o775)
    with (
        named_errors(path),
        tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED, delete=False
        ) as file,
    ):
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink()
            raise


def remove_unfinished(path: Path) -> None:
    """Remove what killed processes wrote of a file with `atomic_write`, and no other process writes
    now."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*{_UNFINISHED}"):
        unfinished.unlink()


def staging_path(path: Path) -> Path:
    """Where the next version of a directory is built: a hidden name in the same folder.

    It is the same for every build of `path`, so the next build, which holds the environment's lock,
    finds and removes what a killed one left.
    """
    return path.with_name(f".{path.name}.provision-building")


def backup_path(path: Path) -> Path:
    """Where the old version of a directory goes between the swap and its removal."""
    return path.with_name(f".{path.name}.provision-replaced")


def replace_directory(path: Path, staging: Path | None = None) -> None:
    """Move `staging`, by default `staging_path(path)`, to `path`, and what was there to
    `backup_path(path)`.

    One step where the file system can exchange two names; else two renames with nothing in between.
    """
    staging = staging or staging_path(path)
    if not path.exists():
        staging.rename(path)
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    status = libc.renameat2(
        _AT_FDCWD, os.fsencode(staging), _AT_FDCWD, os.fsencode(path), _RENAME_EXCHANGE
    )
    if status == 0:
        staging.rename(backup_path(path))
        return
    path.rename(backup_path(path))
    staging.rename(path)


def remove_leftovers(path: Path) -> None:
    """Remove what a killed build of `path` left: its staging directory and its backup."""
    for leftover in (staging_path(path), backup_path(path)):
        remove_tree(leftover)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it; of a link only the link. A missing one is fine."""
    from shutil import rmtree  # with its compressors it takes 2 ms, and few verbs remove

    if path.is_symlink():
        path.unlink()
    elif path.exists():
        rmtree(path)


def remove_leftovers_until_quiet(path: Path) -> None:
    """Remove what a build of `path` left until nothing has come back for QUIET_S.

    A writer that cannot be stopped (rattler's own threads, after Ctrl-C) may still add to it: for a
    moment, and for seconds on a busy machine.
    """
    from shutil import rmtree

    quiet_since = start = time.monotonic()
    while time.monotonic() < min(quiet_since + QUIET_S, start + QUIET_TIMEOUT_S):
        for leftover in (staging_path(path), backup_path(path)):
            if leftover.exists():
                rmtree(leftover, ignore_errors=True)
                quiet_since = time.monotonic()
        time.sleep(POLL_S)
