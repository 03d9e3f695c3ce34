"""Where checkpoints lie: what a place for them must be able to do, and which places there are.

The order of the steps of a save is commit.py's; a backend knows how one of them is done durably in its kind of store. All paths
are a folder's name below the root and a file's name in it. Nothing here imports torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .fsspec_store import open_store
from .local import FileBackend
from .object_store import ObjectBackend
from .traits import Stat, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Backend", "FileBackend", "ObjectBackend", "Stat", "Traits", "open_root"]

# Kinds of URLs that name a folder of this machine.
LOCAL = ("file", "local")


class Backend(Protocol):
    """Methods raise OSError with its errno where the store fails (FileNotFoundError where something is not there)."""

    @property
    def root(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    def folders(self) -> list[str]:
        """Names of the committed checkpoints and of temporary folders, in any order; none where there is no root yet."""

    def files(self, folder: str) -> list[str]:
        """Names in a folder, in any order."""

    def size(self, folder: str, name: str) -> int: ...

    def stat(self, folder: str, name: str) -> Stat: ...

    def read(self, folder: str, name: str) -> bytes: ...

    def read_into(self, folder: str, name: str, offset: int, buffer: memoryview) -> int:
        """Fill the buffer from the file; returns how many bytes there were."""

    def has(self, folder: str, name: str, offset: int, parts: Sequence[memoryview]) -> bool | None:
        """Whether a committed file has these bytes there; None where that cannot be told faster than they are hashed."""

    def begin(self, step: int, parent: str | None) -> str:
        """A new temporary folder, for all ranks. parent: the checkpoint whose files it may reuse."""

    def wait_for(self, folder: str, deadline_s: float) -> None:
        """Until a folder that another rank made can be seen here. Raises TimeoutError."""

    def write(self, folder: str, name: str, parts: Sequence[memoryview]) -> None:
        """A new file of a temporary folder, durable when `flush` has returned. FileExistsError where the name is taken."""

    def reuse(self, source: str, name: str, folder: str) -> str | None:
        """Make a file of the committed folder `source` part of `folder`.

        Returns its home: None where it now lies in the folder itself, else the folder that is referred to. Raises OSError where
        it cannot be had (any more): the caller then writes it.
        """

    def discard(self, folder: str, name: str) -> None:
        """Take a file out of a temporary folder."""

    def flush(self, folder: str) -> None:
        """Make the files that this process wrote into the folder durable, and their names; others see them then."""

    def commit(self, folder: str, step: int, content: bytes) -> str:
        """Write the manifest, make the folder visible as the step's newest generation, have `latest` name it; returns its name.

        Durable on return. Where it raises, it took back what it did, as far as the store still answers.
        """

    def latest(self) -> str | None:
        """What was committed last, by name; None where nothing is named. Raises DamagedFile where what is there was not written."""

    def remove(self, *folders: str) -> None:
        """Take away folders, committed or temporary: invisible first, then gone. Nothing happens where one is not there.

        Files that other checkpoints refer to stay until those are gone too; without names, only what nothing refers to any more goes.
        """

    def address(self, home: str, name: str) -> str:
        """What a file that `home` holds is called in the `.metadata` of another checkpoint, for torch's own readers."""

    def free(self) -> int | None:
        """Bytes that may still be written; None where that cannot be known."""


def open_root(root: str | os.PathLike[str] | Backend, **options: Any) -> Backend:
    """The backend for a folder, or for a URL (`memory://`, `s3://bucket/prefix`: whatever fsspec knows).

    options: fsspec's, for example `endpoint_url`; a folder has none (TypeError). Raises CheckpointError where the URL's kind is not
    known here, or a package that it needs is not installed.
    """
    if not isinstance(root, (str, os.PathLike)):
        return root
    text = os.fspath(root)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in LOCAL:
        return ObjectBackend(open_store(text, options))
    if options:
        raise TypeError(f"{text} is a folder: it takes no {', '.join(sorted(options))}")
    return FileBackend(
        Path(rest if separator else text).absolute()
    )  # the program may change its folder while a save is under way
