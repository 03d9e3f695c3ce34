"""Requests to an object store through fsspec; they fail with an OSError that names the object.

Caches nothing, so it sees what others put or deleted. fsspec, which torch requires since 2.1, is
imported when a store is opened.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Callable, ContextManager, TypeVar

from ..errors import CheckpointError

T = TypeVar("T")

MEMORY = "memory"
# How many small requests run at a time.
REQUESTS = 16
# The errno of exceptions that fsspec's packages raise without one.
CODES = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
    FileExistsError: errno.EEXIST,
}
# memory:// hands every reader of an object the same file with one position in it, and all threads
# of a process share the objects.
_memory_lock = threading.RLock()


class FsspecStore:
    """The objects below one URL. Names are relative to it, with "/" between their parts."""

    def __init__(self, url: str, files: Any, path: str, kind: str) -> None:
        self.url = url
        # The absolute path for fsspec, which does not depend on where the reader is.
        self.path = "/" + path.strip("/")
        self._files = files
        self._root = path.rstrip("/")
        self._lock: ContextManager[object] = _memory_lock if kind == MEMORY else nullcontext()

    def get(self, name: str, begin: int | None = None, end: int | None = None) -> bytes:
        """Fewer bytes if the object ends before."""
        fetch: Callable[[str], bytes] = partial(self._files.cat_file, start=begin, end=end)
        return self._request(name, fetch)

    def put(self, name: str, content: bytes) -> None:
        """Others see either the whole new object or the old one, as object stores promise."""
        self._request(name, lambda path: self._files.pipe_file(path, content))

    def delete(self, name: str) -> None:
        """Does nothing if it does not exist."""
        try:
            self._request(name, self._files.rm_file)
        except FileNotFoundError:
            return

    def size(self, name: str) -> int:
        info = self._request(name, self._files.info)
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{name}")
        return int(info["size"])

    def exists(self, name: str) -> bool:
        # Not fsspec's exists(): to it, a store that does not respond has no objects.
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def list(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Names of the objects directly below a folder, and of the folders; both empty if it does
        not exist.
        """
        try:
            entries: Any = self._request(folder, partial(self._files.ls, detail=True))
        except FileNotFoundError:
            return [], []
        folder_name = last_part(folder or self._root)
        objects, folders = [], []
        for entry in entries:
            name = last_part(entry["name"])
            if entry["type"] == "directory":
                folders.append(name)
            elif name != folder_name:
                objects.append(name)
        return objects, folders

    def _request(self, name: str, action: Callable[[str], T]) -> T:
        address = f"{self.url}/{name}" if name else self.url
        path = f"{self._root}/{name}"
        with self._lock, as_os_errors(address, path):
            return action(path if name else self._root)


def open_store(url: str, options: Mapping[str, object]) -> FsspecStore:
    """Raises CheckpointError if a package is missing, or the kind of store is unknown to fsspec."""
    kind = url.partition("://")[0]
    if "::" in url:
        raise CheckpointError(
            f"{url}: chained stores ({kind}) are not supported; pass the store's own URL"
        )
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise CheckpointError(
            f"{url}: {kind}:// needs the package fsspec: pip install fsspec"
        ) from error
    try:
        files, path = url_to_fs(url, **{"use_listings_cache": False, **options})
    except ImportError as error:  # its text names the package
        raise CheckpointError(f"{url}: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{url}: fsspec does not support {kind}:// ({error})") from error
    return FsspecStore(url.rstrip("/"), files, path, kind)


def request_all(action: Callable[[str], T], names: Sequence[str]) -> list[T]:
    """Several requests at a time; their results in order."""
    if not names:
        return []
    workers = min(REQUESTS, len(names))
    with ThreadPoolExecutor(workers, thread_name_prefix="provision-store") as pool:
        return list(pool.map(action, names))


@contextmanager
def as_os_errors(address: str, path: str) -> Iterator[None]:
    """Turns every exception of a store's package into an OSError with errno, text and address.

    Some are not OSErrors (botocore's, if the server does not respond or there are no credentials),
    and they have no common parent.
    """
    try:
        yield
    except OSError as error:
        code = error.errno
        if not code:
            codes = (code for kind, code in CODES.items() if isinstance(error, kind))
            code = next(codes, errno.EIO)
        text = error.strerror or str(error)
        if text.strip("/") in ("", path.strip("/")):
            text = os.strerror(code)
        raise OSError(code, text, address) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", address) from error


def last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
