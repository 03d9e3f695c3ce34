"""The folder that holds a run's checkpoints: each is written to a temporary folder, synced, and renamed
into place; unchanged files are hard links.

How one step of a save becomes durable; commit.py has the order of the steps. Paths are the name of a
folder below the root, and of a file in it. All methods may raise OSError with its errno
(FileNotFoundError if something does not exist). Nothing here imports torch.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Tuple, Union

from .. import fs
from . import layout, manifest
from .errors import CheckpointError

# Where the checkpoints of a run are.
Root = Union[str, "os.PathLike[str]"]
# The number of a step, or `latest`.
Step = Union[int, str]
# A file on the disk, whatever its names are.
FileKey = Tuple[int, int]

# Bytes to read at a time: few enough to be hashed while they are in the processor's cache.
READ_BYTES = 1 << 20
# Each time that so much was written, the disk starts on it: this raised 1.6 to 2.6 GB/s for writing
# and syncing 1 GiB (ext4 on a virtual disk, 2 cores).
WRITE_BYTES = 8 << 20
# The errors of a rename onto an existing folder.
EXISTS = (errno.EEXIST, errno.ENOTEMPTY)
# At most so many files wait for their sync: by default a process may have 1,024 open files, and the
# training needs some. When there are more, SYNCED_TOGETHER of the oldest are synced one after the
# other, and nothing else meanwhile: most of a sync is the journal, and the first sync writes it for
# all of them. One at a time, 3 GB took 4.7 s instead of 3.2.
MAX_UNSYNCED = 64
SYNCED_TOGETHER = 32


class Stat(NamedTuple):
    """A file: its bytes, how many names it has, and a key that exactly these names share."""

    size: int
    names: int
    key: FileKey


class Storage:
    """A root.

    Raises CheckpointError for a URL.
    """

    def __init__(self, root: Root) -> None:
        text = os.fspath(root)
        if "://" in text:
            raise CheckpointError(
                f"{text} is a URL; checkpoints are saved in a folder. Save to a folder, and copy "
                "committed steps, which never change, with the store's own tool (`aws s3 sync`, "
                "`rclone copy`), or mount the store"
            )
        # Absolute, since the program may change its working directory during a save.
        self._root = Path(text).absolute()
        self.root = str(self._root)
        # Files of the temporary folder that were written but not synced yet. They stay open: if a
        # file is opened again, its sync may not report an earlier write error (fsync(2)). The first
        # sync of many waits for the journal, so they are synced together.
        self._unsynced: list[int] = []
        self._lock = threading.Lock()
        self._syncing = threading.Lock()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            _for_all((os.close,), self._unsynced)

    def _path(self, folder: str, name: str) -> str:
        """A string, since there are thousands: making a Path takes as long as the system call."""
        return f"{self.root}/{folder}/{name}"

    def folders(self) -> list[str]:
        """Committed checkpoints and temporary folders, in any order; empty if there is no root yet."""
        try:
            names = fs.retry_stale(lambda: os.listdir(self.root))
        except FileNotFoundError:
            self._check_links()
            return []
        return [name for name in names if layout.parse(name) or name.startswith(layout.TEMPORARY)]

    def _check_links(self) -> None:
        """A link that leads nowhere is no place for a new root: its target may only be unmounted."""
        for path in (self._root, *self._root.parents):
            if path.is_symlink() and not path.exists():
                text = f"it is a link to {os.readlink(path)}, which does not exist"
                raise FileNotFoundError(errno.ENOENT, text, str(path))

    def linked(self) -> dict[str, str]:
        """The names below the root that an operator linked or mounted: they are read like the others,
        and never changed or removed. For each the name below the root where it leads, else "".
        """
        names: dict[str, str] = {}
        try:
            paths = list(self._root.iterdir())
        except FileNotFoundError:
            return names
        root = os.path.realpath(self._root)
        for path in paths:
            if path.is_symlink():
                target = os.path.relpath(os.path.realpath(path), root)
                names[path.name] = target.split(os.sep)[0]
            elif layout.parse(path.name) and os.path.ismount(path):
                names[path.name] = ""
        return names

    def files(self, folder: str) -> list[str]:
        return fs.retry_stale(lambda: os.listdir(self._root / folder))

    def stat(self, folder: str, name: str) -> Stat:
        status = fs.retry_stale(lambda: os.stat(self._path(folder, name)))
        return Stat(status.st_size, status.st_nlink, (status.st_dev, status.st_ino))

    def read(self, folder: str, name: str) -> bytes:
        return fs.read_bytes(self._root / folder / name)

    def read_into(self, folder: str, name: str, offset: int, buffer: memoryview) -> int:
        """How many bytes there were; fewer than the buffer has at the end of the file."""

        def read() -> int:
            with open(self._path(folder, name), "rb") as file:
                file.seek(offset)
                return file.readinto(buffer)

        return fs.retry_stale(read)

    def begin(self, step: int) -> str:
        """Makes a new temporary folder for all ranks; its name."""
        # Each new folder is synced into its parent: a power cut could remove the root itself.
        self._check_links()
        missing = [path for path in (self._root, *self._root.parents) if not path.is_dir()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            fs.fsync_directory(path.parent)
        name = layout.temporary(str(layout.CheckpointName(step, 0)))
        (self._root / name).mkdir()
        return name

    def wait_for(self, folder: str, timeout_s: float) -> None:
        """Returns when this rank sees a folder that another rank made. Raises TimeoutError."""
        fs.wait_until_visible(self._root / folder, timeout_s)

    def write(self, folder: str, name: str, content: memoryview) -> None:
        """Writes a new file of a temporary folder, durable once `flush` has returned. Raises
        FileExistsError.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self._path(folder, name), flags, 0o666)
        try:
            # Makes the disk start at once: otherwise it would idle until the sync.
            offset = 0
            while offset < len(content):
                written = os.write(descriptor, content[offset : offset + WRITE_BYTES])
                fs.files.start_writeback(descriptor, offset, written)
                offset += written
        except BaseException:
            os.close(descriptor)
            raise
        self._unsynced.append(descriptor)
        if len(self._unsynced) > MAX_UNSYNCED:
            with self._syncing:
                # Another thread may have synced some of them meanwhile.
                if len(self._unsynced) > MAX_UNSYNCED:
                    _for_all((os.fsync, os.close), self._take_unsynced(SYNCED_TOGETHER))

    def reuse(self, source: str, name: str, folder: str) -> None:
        """Makes a file of a committed folder part of a temporary one. Raises OSError if that is not
        possible.
        """
        with suppress(FileExistsError):
            os.link(self._path(source, name), self._path(folder, name))

    def discard(self, folder: str, name: str) -> None:
        (self._root / folder / name).unlink()

    def replace(self, folder: str, name: str, content: bytes, same: str | None = None) -> None:
        """Writes a file of a folder at once: readers see the old one or the new one. Durable once
        `flush` has returned.

        same: a folder whose file of this name has the content already, which may be linked.
        """
        aside = self._root / layout.temporary(name)
        try:
            try:
                if same is None:
                    raise FileNotFoundError
                os.link(self._path(same, name), aside)
            except OSError:
                fs.write_synced(aside, content)
            if not layout.parse(folder):  # a step that was removed meanwhile stays removed
                (self._root / folder).mkdir(exist_ok=True)
            os.replace(aside, self._path(folder, name))
        finally:
            # Also after a rename: of two names of one file it does nothing.
            aside.unlink(missing_ok=True)

    def drop_cache(self, folder: str, name: str) -> None:
        """Makes the next read of a file come from the disk, as far as the file system allows."""
        with suppress(OSError), open(self._path(folder, name), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def flush(self, folder: str) -> None:
        """Makes the files that this process wrote into a folder durable, with their names."""
        _for_all((os.fsync, os.close), self._take_unsynced())
        fs.fsync_directory(self._root / folder)

    def _take_unsynced(self, count: int | None = None) -> list[int]:
        """The oldest, which the caller closes."""
        with self._lock:
            oldest = self._unsynced[:count]
            del self._unsynced[: len(oldest)]
        return oldest

    def commit(self, folder: str, step: int, content: bytes) -> str:
        """Writes the manifest, syncs the folder, renames it, syncs the root, replaces `latest`.
        Returns the folder's new name.

        Each step is durable before the next. What can fail for lack of space is written before the
        rename; a failure after the rename undoes it.
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

    def _rename_in(self, folder: str, step: int, pointer: Path) -> str:
        """Renames the folder to the step's next free generation; returns its name.

        A rename never replaces a folder that is not empty, so two jobs that save one step get two
        generations.
        """
        generation = layout.next_generation(self.folders(), step)
        while True:
            name = str(layout.CheckpointName(step, generation))
            fs.write_synced(pointer, layout.pointer(name))
            try:
                os.rename(self._root / folder, self._root / name)
            except OSError as error:
                if error.errno not in EXISTS:
                    raise
                pointer.unlink(missing_ok=True)
                generation += 1
                continue
            return name

    def latest(self) -> str | None:
        """The folder that `latest` names; None if there is no `latest`, or no save wrote what it holds."""
        try:
            content = fs.read_bytes(self._root / layout.LATEST)
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            if not (self._root / layout.LATEST).is_symlink():
                raise
            return None  # somebody's link to a step
        return layout.pointed_to(content)

    def remove(self, folder: str) -> None:
        """Makes a folder invisible, then removes it. Ignores one that does not exist."""
        if folder.startswith(layout.TEMPORARY):
            with suppress(OSError):
                _for_all((os.close,), self._take_unsynced())
        path = self._root / folder
        if path.is_symlink() or os.path.ismount(path):
            return
        if layout.parse(folder):
            can_empty = os.access(path, os.W_OK | os.X_OK, effective_ids=True)
            if path.is_dir() and not can_empty:
                # Once renamed, it would be invisible and stay all the same.
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            path = self._root / layout.temporary(folder)
            try:
                os.rename(self._root / folder, path)
            except FileNotFoundError:
                return
        try:
            if path.name != folder:  # it must not come back with files missing
                fs.fsync_directory(self._root)
            if path.is_dir():
                shutil.rmtree(str(path), onerror=_ignore_missing)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            layout.abandoned.add(path.name)
            raise
        layout.abandoned.discard(path.name)

    def free(self) -> int:
        """Bytes that may still be written."""
        status = os.statvfs(fs.files.nearest_existing(self._root))
        return status.f_bavail * status.f_frsize


def _for_all(actions: Sequence[Callable[[int], None]], descriptors: Sequence[int]) -> None:
    """Does each of the actions with all of them; raises the first error.

    The client of a network file system may report a failed write only when a file is closed.
    """
    errors = []
    for action in actions:
        for descriptor in descriptors:
            try:
                action(descriptor)
            except OSError as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _ignore_missing(
    _: object, path: str, failure: tuple[type[BaseException], BaseException, object]
) -> None:
    """Two processes may remove one folder at the same time."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]
