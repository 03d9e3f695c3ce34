"""Who may change and read a store: its folders and files are made with the right permissions, and
refused where somebody else has a hand in them.
"""

from __future__ import annotations

import contextlib
import os
import stat

from . import trust
from .errors import NodeError
from .store import FOLDERS, Store


def ensure_folders(store: Store) -> None:
    """Make what is missing, one folder after the other: no link of somebody else is followed.

    Who may read the store is decided by its top folder, and what is below is open to all. That folder
    is left as somebody made it, unless the lab's rules name who works with it.
    """
    missing = []
    path = store.path
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    require_safe_path(store, path)
    for folder in reversed(missing):
        _ensure_folder(store, folder)
    if missing or store.trusted_group or store.readers:
        _set_permissions(store, store.path, store.readers)
    for name in FOLDERS:
        _ensure_folder(store, store.join(name))
        _set_permissions(store, store.join(name), "all")


def _ensure_folder(store: Store, folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)
        _set_permissions(store, folder, "all")
    require_safe_path(store, folder)


def _set_permissions(store: Store, folder: str, readers: str) -> None:
    """Give a folder its permissions, if it is ours to give."""
    mode = 0o755
    if readers == "me":
        mode = 0o700
    elif readers.startswith(trust.GROUP_READERS):
        mode = 0o750
    group = readers
    if store.trusted_group:
        mode, group = mode | 0o2070, trust.GROUP_READERS + store.trusted_group
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if os.geteuid() not in (0, status.st_uid):
            return
        gid = trust.readers_gid(group)
        if gid not in (None, status.st_gid):
            os.fchown(descriptor, -1, gid)
        if stat.S_IMODE(status.st_mode) != mode or gid not in (None, status.st_gid):
            os.fchmod(descriptor, mode)
    except KeyError:
        raise NodeError(
            "not-readable", f"there is no such group as in `readers: {readers}`"
        ) from None
    finally:
        os.close(descriptor)


def open_file(store: Store, path: str, flags: int) -> int:
    """A file of the store itself, open for writing; never what somebody put in its stead: a link, a
    second name of another file, a pipe that would wait for its reader. Raises NodeError
    (not-ours)."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise NodeError("not-ours", f"{path} is not a file that provision made")
    if status.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o664 if store.trusted_group else 0o644)
    return descriptor


def require_safe(store: Store) -> None:
    """Raise NodeError (unsafe-store) if another user could change what jobs run from here, or where
    we write: or did so while the store was open. Of a store that is not there, its path."""
    for folder in (store.path, *map(store.join, FOLDERS)):
        require_safe_path(store, folder)
        _refuse(store.trust.entries_problem(folder))


def require_safe_environment(store: Store, key: str, is_deep: bool = False) -> None:
    """The same of an environment that is installed: of what its Python is started from; is_deep: of
    all its files."""
    require_safe_path(store, store.python(key))
    if is_deep:
        _refuse(store.trust.entries_problem(store.environment(key), is_deep=True))


def require_safe_path(store: Store, path: str) -> None:
    _refuse(store.trust.path_problem(path))


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise NodeError("unsafe-store", problem)


def reader_note(store: Store, path: str) -> str:
    """What keeps other users from something in the store, where the lab does not name who should read
    it: root ships for all, and another account for itself. Raises NodeError (not-readable) if it
    keeps those whom it is for."""
    readers = store.readers or "all"
    problem = None if readers == "me" else trust.reader_problem(path, readers)
    if problem is not None and (store.readers or os.geteuid() == 0):
        raise NodeError("not-readable", problem)
    return problem or ""
