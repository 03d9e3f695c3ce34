"""The one door to fsspec: a handful of requests to a store of objects, each of which fails as an OSError that names the object.

Nothing is cached: what others put or deleted is seen. fsspec, which torch needs since 2.1, is imported when a store is opened.
"""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Callable, ContextManager, TypeVar

from ..manifest import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")

MEMORY = "memory"
# Requests under way at a time, where there are many small ones.
REQUESTS = 16
# What fsspec's packages say by class alone.
CODES = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
    FileExistsError: errno.EEXIST,
}
# memory:// hands every reader of an object the same file with one position in it, and all of a process share the objects.
_memory = threading.RLock()


class Store:
    """The objects below one URL; names are relative to it, with "/" between their parts."""

    def __init__(self, url: str, files: Any, path: str, kind: str) -> None:
        self.url = url
        self.is_shared = kind != MEMORY
        # What a path that does not depend on the reader's own place looks like, for fsspec.
        self.path = "/" + path.strip("/")
        self._files = files
        self._root = path.rstrip("/")
        self._alone: Callable[[], ContextManager[object]] = (
            nullcontext if self.is_shared else lambda: _memory
        )

    def get(self, name: str) -> bytes:
        content: bytes = self._ask(name, self._files.cat_file)
        return content

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Fewer bytes where the object ends before."""
        content: bytes = self._ask(
            name, lambda path: self._files.cat_file(path, start=begin, end=end)
        )
        return content

    def put(self, name: str, content: bytes) -> None:
        """Others see all of the object, or what was there before; that is the store's promise, which object stores give."""
        self._ask(name, lambda path: self._files.pipe_file(path, content))

    def delete(self, name: str) -> None:
        """Nothing happens where it is not there."""
        try:
            self._ask(name, self._files.rm_file)
        except FileNotFoundError:
            return

    def size(self, name: str) -> int:
        found = self._ask(name, self._files.info)
        if found["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{name}")
        return int(found["size"])

    def exists(self, name: str) -> bool:
        # Not fsspec's exists(), for which a store that does not answer is one that has nothing.
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def list(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Names of the objects right below a folder, and of the folders; none where there is nothing."""
        try:
            found = self._ask(folder, self._listing)
        except FileNotFoundError:
            return [], []
        names = {
            kind: [last(one["name"]) for one in found if (one["type"] == "directory") == kind]
            for kind in (False, True)
        }
        return [name for name in names[False] if name != last(folder or self._root)], names[True]

    def _listing(self, path: str) -> Any:
        self._files.invalidate_cache()
        return self._files.ls(path, detail=True)

    def _ask(self, name: str, action: Callable[[str], Any]) -> Any:
        url = f"{self.url}/{name}" if name else self.url
        path = f"{self._root}/{name}" if name else self._root
        with self._alone(), failures(url, f"{self._root}/{name}"):
            return action(path)


def open_store(url: str, options: Mapping[str, Any]) -> Store:
    """Raises CheckpointError where a package is missing, or where fsspec does not know the kind of store."""
    kind = url.partition("://")[0]
    if "::" in url:
        raise CheckpointError(
            f"{url}: chained stores ({kind}) are not supported, give the store's own URL"
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
        raise CheckpointError(
            f"{url}: stores of kind {kind}:// are not known to fsspec ({error})"
        ) from error
    return Store(url.rstrip("/"), files, path, kind)


def each(action: Callable[[str], T], names: Sequence[str]) -> list[T]:
    """Several requests at a time; what they return, in order."""
    if not names:
        return []
    with ThreadPoolExecutor(
        min(REQUESTS, len(names)), thread_name_prefix="provision-store"
    ) as pool:
        return list(pool.map(action, names))


@contextmanager
def failures(address: str, path: str) -> Iterator[None]:
    """Whatever a store's package raises becomes an OSError with errno, words and address.

    Some are none (botocore's, where nobody answers or no credentials are found), and they have no common parent.
    """
    try:
        yield
    except OSError as error:
        code = error.errno or next(
            (code for kind, code in CODES.items() if isinstance(error, kind)), errno.EIO
        )
        words = error.strerror or str(error)
        raise OSError(
            code, os.strerror(code) if words.strip("/") in ("", path.strip("/")) else words, address
        ) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", address) from error


def last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
