"""Checkpoints in a folder of a file system: written aside, synced, renamed in; unchanged files are hard links."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ... import fs
from .. import layout, manifest
from ..compare import has_cached
from .latest_file import named_by
from .traits import Stat, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# What is read at a time, small enough to be hashed while it is in the processor's cache.
READ = 1 << 20
# IOV_MAX of Linux: more parts than this go into several calls.
PARTS = 1024
# After so much, the disk is told to begin: 1.6 became 2.6 GB/s where 1 GiB was written and synced (ext4 on a virtual disk, 2 cores).
BLOCK = 8 << 20
TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
# How many files wait to be synced at most: a process may have 1,024 open by default, and the training has its own. When there are more,
# so many of the oldest, and no others beside them, are synced one after the other: most of a sync is the journal, and the first has it
# written for all. One at a time, 3 GB took 4.7 s in place of 3.2.
OPEN = 64
TOGETHER = 32


class FileBackend:
    traits = Traits(rename=True, links="hard", sync=True, shared=True, block=READ)

    def __init__(self, folder: Path) -> None:
        self._root = folder
        # Files that were written and not synced yet, by folder. They stay open: who opens one anew may not be told that it could not be
        # written (fsync(2)). The first sync of many waits for the journal, so they are synced together.
        self._unsynced: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._syncing = threading.Lock()

    def __del__(self) -> None:
        for folder in tuple(getattr(self, "_unsynced", ())):
            self._let_go(folder)

    @property
    def root(self) -> str:
        return str(self._root)

    def _path(self, folder: str, name: str) -> str:
        """Where files come by the thousand: making a Path takes as long as the system call."""
        return f"{self._root}/{folder}/{name}"

    def folders(self) -> list[str]:
        try:
            names = [entry.name for entry in fs.retry_stale(lambda: list(self._root.iterdir()))]
        except FileNotFoundError:
            return []
        return [name for name in names if layout.parse(name) or name.startswith(layout.TEMPORARY)]

    def files(self, folder: str) -> list[str]:
        return fs.retry_stale(lambda: os.listdir(self._root / folder))

    def size(self, folder: str, name: str) -> int:
        return fs.retry_stale(lambda: os.stat(self._path(folder, name))).st_size

    def stat(self, folder: str, name: str) -> Stat:
        found = fs.retry_stale((self._root / folder / name).lstat)
        return Stat(found.st_size, found.st_nlink, (found.st_dev, found.st_ino))

    def read(self, folder: str, name: str) -> bytes:
        return fs.read_bytes(self._root / folder / name)

    def read_into(self, folder: str, name: str, offset: int, buffer: memoryview) -> int:
        return fs.retry_stale(lambda: _read_into(self._root / folder / name, offset, buffer))

    def has(self, folder: str, name: str, offset: int, parts: Sequence[memoryview]) -> bool | None:
        try:
            descriptor = os.open(self._path(folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return has_cached(descriptor, offset, parts)
        finally:
            os.close(descriptor)

    def begin(self, step: int, parent: str | None) -> str:
        self._make_root()
        name = layout.temporary(str(layout.Name(step, 0)))
        (self._root / name).mkdir()
        return name

    def _make_root(self) -> None:
        """Each new folder is synced into its parent, or the root itself could be gone after a power cut."""
        new = [path for path in (self._root, *self._root.parents) if not path.is_dir()]
        for path in reversed(new):
            path.mkdir(exist_ok=True)
            fs.fsync_directory(path.parent)

    def wait_for(self, folder: str, deadline_s: float) -> None:
        fs.wait_until_visible(self._root / folder, deadline_s)

    def write(self, folder: str, name: str, parts: Sequence[memoryview]) -> None:
        descriptor = os.open(
            self._path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
        )
        try:
            _write_all(descriptor, parts)
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            waiting = self._unsynced.setdefault(folder, [])
            waiting.append(descriptor)
            are_many = len(waiting) > OPEN
        if are_many:
            with self._syncing:
                self._sync_oldest(folder)

    def _sync_oldest(self, folder: str) -> None:
        with self._lock:
            waiting = self._unsynced.get(folder, [])
            oldest = waiting[:TOGETHER] if len(waiting) > OPEN else []
            del waiting[: len(oldest)]
        _sync_and_close(oldest)

    def reuse(self, source: str, name: str, folder: str) -> None:
        try:
            os.link(self._path(source, name), self._path(folder, name))
        except FileExistsError:
            return

    def discard(self, folder: str, name: str) -> None:
        (self._root / folder / name).unlink()

    def flush(self, folder: str) -> None:
        with self._lock:
            waiting = self._unsynced.pop(folder, [])
        _sync_and_close(waiting)
        fs.fsync_directory(self._root / folder)

    def _let_go(self, folder: str) -> None:
        """Of what is not to be synced any more."""
        with self._lock:
            waiting = self._unsynced.pop(folder, [])
        with suppress(OSError):
            _close(waiting)

    def commit(self, folder: str, step: int, content: bytes) -> str:
        """The manifest, then the folder's names, then the rename, then the root's names, then `latest`: each durable before the next.

        What can fail for want of space is written before the rename; what fails after it takes the rename back.
        """
        fs.write_synced(self._root / folder / manifest.NAME, content)
        self.flush(folder)
        pointer = layout.temporary(layout.LATEST)
        try:
            name = self._rename_in(folder, step, self._root / pointer)
            try:
                fs.fsync_directory(self._root)
                os.replace(self._root / pointer, self._root / layout.LATEST)
                fs.fsync_directory(self._root)
            except BaseException:
                with suppress(OSError):
                    os.rename(self._root / name, self._root / folder)
                raise
        except BaseException:
            with suppress(OSError):
                self.remove(pointer)
            raise
        return name

    def latest(self) -> str | None:
        try:
            content = fs.read_bytes(self._root / layout.LATEST)
        except FileNotFoundError:
            return None
        return named_by(content, self.root)

    def remove(self, *folders: str) -> None:
        for folder in folders:
            self._remove(folder)

    def address(self, home: str, name: str) -> str:
        return f"../{home}/{name}"

    def _remove(self, folder: str) -> None:
        self._let_go(folder)
        aside = folder
        try:
            if layout.parse(folder):
                aside = layout.temporary(folder)
                try:
                    os.rename(self._root / folder, self._root / aside)
                except FileNotFoundError:
                    return
                fs.fsync_directory(self._root)
            self._take_away(self._root / aside)
        except OSError:
            layout.abandoned.add(aside)
            raise
        layout.abandoned.discard(aside)

    def free(self) -> int | None:
        there = self._root
        while not there.exists():
            there = there.parent
        state = os.statvfs(there)
        return state.f_bavail * state.f_frsize

    @staticmethod
    def _take_away(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(str(path), onerror=_unless_gone)
        else:
            fs.remove_if_exists(path)

    def _rename_in(self, folder: str, step: int, pointer: Path) -> str:
        """A rename never replaces a folder that holds something, so of two jobs that save one step each gets a generation."""
        name = self._next_generation(step)
        while True:
            fs.write_synced(pointer, layout.pointer(str(name)))
            try:
                os.rename(self._root / folder, self._root / str(name))
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                fs.remove_if_exists(pointer)
                name = layout.Name(step, name.generation + 1)
                continue
            return str(name)

    def _next_generation(self, step: int) -> layout.Name:
        taken = [
            name.generation
            for name in map(layout.parse, self.folders())
            if name and name.step == step
        ]
        return layout.Name(step, max(taken, default=-1) + 1)


def _read_into(path: Path, offset: int, buffer: memoryview) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(buffer):
            count = os.preadv(descriptor, [buffer[done:]], offset + done)
            if not count:
                break
            done += count
        return done
    finally:
        os.close(descriptor)


def _sync_and_close(descriptors: Sequence[int]) -> None:
    """All are closed, also where one cannot be synced."""
    try:
        for descriptor in descriptors:
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            _close(descriptors)
        raise
    _close(descriptors)


def _close(descriptors: Sequence[int]) -> None:
    """All of them; a client of a network file system may tell only now that it could not write. Raises the first such error."""
    failed = None
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError as error:
            failed = failed or error
    if failed:
        raise failed


def _write_all(descriptor: int, parts: Sequence[memoryview]) -> None:
    """The kernel may take less than it is given. The disk is set to work at once: it would idle until the sync else."""
    left = [part.cast("B") for part in parts if part.nbytes]
    offset = 0
    while left:
        written = os.writev(descriptor, _at_most(BLOCK, left[:PARTS]))
        fs.start_writeback(descriptor, offset, written)
        offset += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _at_most(limit: int, parts: list[memoryview]) -> list[memoryview]:
    """The parts up to so many bytes, the last of them cut."""
    taken = []
    for part in parts:
        taken.append(part[:limit])
        limit -= len(taken[-1])
        if not limit:
            break
    return taken


def _unless_gone(
    _: object, path: str, failure: tuple[type[BaseException], BaseException, object]
) -> None:
    """Two that clear away one folder may meet in it."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]
