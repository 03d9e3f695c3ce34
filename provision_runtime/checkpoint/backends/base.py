"""What a store of checkpoints must be able to do. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Hashable, NamedTuple, Protocol

from .. import layout
from ..errors import DamagedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

LATEST_PROBLEM = (
    "its content is not what a save wrote (load a step by its number, "
    'or pass on_damage="previous"; the next save replaces the file)'
)


@dataclass(frozen=True)
class Traits:
    """What a kind of store can do; the documentation's table is made from it.

    rename: a folder becomes visible by one rename; without it, by its manifest, written last.
    links: how an unchanged file becomes part of the next checkpoint: as a second name ("hard") or
    by a reference to the older folder ("reference"). sync: a write survives a power cut only once
    it was synced. shared: other processes see the store. block: how many bytes to read at a time
    when a whole file is read.
    """

    rename: bool
    links: str
    sync: bool
    shared: bool
    block: int


class Stat(NamedTuple):
    """A file of a store. names: how many it has in the whole store. key: shared by exactly these
    names.
    """

    size: int
    names: int
    key: Hashable


class Backend(Protocol):
    """Where checkpoints are. Paths are the name of a folder below the root, and of a file in it.

    commit.py has the order of the steps of a save; a backend knows how its store does one of them
    durably. Methods raise OSError with its errno if the store fails (FileNotFoundError if something
    does not exist).
    """

    @property
    def root(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    def folders(self) -> list[str]:
        """Names of committed checkpoints and of temporary folders, in any order; empty if there is
        no root yet.
        """

    def files(self, folder: str) -> list[str]:
        """Names in a folder, in any order."""

    def size(self, folder: str, name: str) -> int: ...

    def stat(self, folder: str, name: str) -> Stat: ...

    def read(self, folder: str, name: str) -> bytes: ...

    def read_into(self, folder: str, name: str, offset: int, buffer: memoryview) -> int:
        """Fills the buffer from the file; returns how many bytes there were."""

    def has(self, folder: str, name: str, offset: int, parts: Sequence[memoryview]) -> bool | None:
        """Whether a committed file has these bytes at this offset; None if hashing is faster."""

    def begin(self, step: int, parent: str | None) -> str:
        """A new temporary folder for all ranks. parent: the checkpoint whose files it may reuse."""

    def wait_for(self, folder: str, timeout_s: float) -> None:
        """Returns when this rank sees a folder that another rank made. Raises TimeoutError."""

    def write(self, folder: str, name: str, parts: Sequence[memoryview]) -> None:
        """A new file of a temporary folder, durable once `flush` has returned.

        Raises FileExistsError.
        """

    def reuse(self, source: str, name: str, folder: str) -> str | None:
        """Makes a file of the committed folder `source` part of `folder`.

        Returns its home: None if it is now in the folder itself, else the folder that is referred
        to. Raises OSError if that is not possible: the caller then writes the file.
        """

    def discard(self, folder: str, name: str) -> None:
        """Removes a file from a temporary folder."""

    def replace(self, folder: str, name: str, content: bytes, same: str | None = None) -> None:
        """Writes a file of a folder at once: readers see the old one or the new one.

        Durable once `flush` has returned. same: a folder whose file of this name has the content
        already, so that a store with links may link it.
        """

    def drop_cache(self, folder: str, name: str) -> None:
        """What is read next comes from the disk, as far as the system can tell."""

    def linked(self) -> dict[str, str]:
        """Names below the root that an operator linked or mounted: they are read like the others,
        and never changed or removed. Each with the name below the root where it leads, else "".
        """

    def flush(self, folder: str) -> None:
        """Makes the files that this process wrote into the folder durable, with their names, and
        visible to others.
        """

    def commit(self, folder: str, step: int, content: bytes) -> str:
        """Writes the manifest, makes the folder visible as the step's newest generation, points
        `latest` at it.

        Returns the folder's new name. Durable on return. If it raises, it has undone what it did,
        as far as the store still answers.
        """

    def latest(self) -> str | None:
        """The name in `latest`; None if there is none.

        Raises DamagedFile if no save wrote its content.
        """

    def remove(self, *folders: str) -> None:
        """Makes folders invisible, then removes them: committed or temporary ones. Ignores those
        that do not exist.

        Files that other checkpoints refer to stay until those are gone too. Without folders,
        removes only files that nothing refers to any more.
        """

    def address(self, home: str, name: str) -> str:
        """How the `.metadata` of another checkpoint refers to a file in `home`, for torch's own
        readers.
        """

    def free(self) -> int | None:
        """Bytes that may still be written; None if that is unknown."""


def parse_latest(content: bytes, root: str) -> str:
    """The folder that the content of `latest` names. Raises DamagedFile if no save wrote it."""
    folder = layout.pointed_to(content)
    if folder is None:
        raise DamagedFile(f"{root}/{layout.LATEST}", LATEST_PROBLEM)
    return folder
