"""What a store of checkpoints must be able to do. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Hashable, Mapping, NamedTuple, Optional, Protocol, Union

from .. import layout
from ..errors import DamagedFile

LATEST_PROBLEM = (
    "its content is not what a save wrote (load a step by its number, "
    'or pass on_damage="previous"; the next save replaces the file)'
)


@dataclass(frozen=True)
class Traits:
    """What a kind of store can do; the documentation's table is made from it.

    Attributes:
        rename: A folder becomes visible by one rename; without it, by its manifest, written last.
        links: Whether an unchanged file becomes part of the next checkpoint as a second name (a hard
            link), without being written.
        sync: A write survives a power cut only once it was synced.
        block: How many bytes to read at a time when a whole file is read.
    """

    rename: bool
    links: bool
    sync: bool
    block: int


class Stat(NamedTuple):
    """A file of a store.

    Attributes:
        size: Its bytes.
        names: How many names it has in the whole store.
        key: Shared by exactly these names.
    """

    size: int
    names: int
    key: Hashable


class Backend(Protocol):
    """Where checkpoints are. Paths are the name of a folder below the root, and of a file in it.

    `save` has the order of the steps (commit.py); a backend knows how its store does one of them
    durably. All methods may raise OSError with its errno if the store fails (FileNotFoundError if
    something does not exist); their Raises name what else they raise.
    """

    @property
    def root(self) -> str:
        """The absolute path, or the URL."""

    @property
    def traits(self) -> Traits:
        """What this kind of store can do."""

    def folders(self) -> list[str]:
        """Lists committed checkpoints and temporary folders.

        Returns:
            Their names, in any order; empty if there is no root yet.
        """

    def files(self, folder: str) -> list[str]:
        """Lists a folder.

        Args:
            folder: Its name below the root.

        Returns:
            The names of its files, in any order.
        """

    def stat(self, folder: str, name: str) -> Stat:
        """Asks for the size and the names of a file.

        Args:
            folder: The name of its folder.
            name: Its name.

        Returns:
            Its size, and how many names it has.
        """

    def read(self, folder: str, name: str) -> bytes:
        """Reads a whole file.

        Args:
            folder: The name of its folder.
            name: Its name.

        Returns:
            Its content.
        """

    def read_into(self, folder: str, name: str, offset: int, buffer: memoryview) -> int:
        """Fills a buffer from a file.

        Args:
            folder: The name of the file's folder.
            name: The file's name.
            offset: The first byte to read.
            buffer: Where the bytes go.

        Returns:
            How many bytes there were; fewer than the buffer has at the end of the file.
        """

    def begin(self, step: int, parent: str | None) -> str:
        """Makes a new temporary folder for all ranks.

        Args:
            step: The number of the step.
            parent: The name of the checkpoint whose files it may reuse; None if there is none.

        Returns:
            The folder's name.
        """

    def wait_for(self, folder: str, timeout_s: float) -> None:
        """Returns when this rank sees a folder that another rank made.

        Args:
            folder: Its name.
            timeout_s: Seconds to wait.

        Raises:
            TimeoutError: If it is not visible by then.
        """

    def write(self, folder: str, name: str, parts: Sequence[memoryview]) -> None:
        """Writes a new file of a temporary folder, durable once `flush` has returned.

        Args:
            folder: The name of the folder.
            name: The name of the file.
            parts: Its content, in order.

        Raises:
            FileExistsError: If the file exists.
        """

    def reuse(self, source: str, name: str, folder: str) -> None:
        """Makes a file of a committed folder part of a temporary one.

        Args:
            source: The name of the committed folder.
            name: The name of the file, in both.
            folder: The name of the temporary folder.

        Raises:
            OSError: If that is not possible. The caller then writes the file.
        """

    def discard(self, folder: str, name: str) -> None:
        """Removes a file from a temporary folder.

        Args:
            folder: The name of the folder.
            name: The name of the file.
        """

    def replace(self, folder: str, name: str, content: bytes, same: str | None = None) -> None:
        """Writes a file of a folder at once: readers see the old one or the new one.

        Durable once `flush` has returned.

        Args:
            folder: The name of the folder.
            name: The name of the file.
            content: Its new content.
            same: A folder whose file of this name has the content already, so that a store with links
                may link it.
        """

    def drop_cache(self, folder: str, name: str) -> None:
        """Makes the next read of a file come from the disk, as far as the file system allows.

        Args:
            folder: The name of its folder.
            name: Its name.
        """

    def linked(self) -> dict[str, str]:
        """Lists the names below the root that an operator linked or mounted: they are read like the
        others, and never changed or removed.

        Returns:
            For each the name below the root where it leads, else "".
        """

    def flush(self, folder: str) -> None:
        """Makes the files that this process wrote into a folder durable, with their names, and
        visible to others.

        Args:
            folder: The name of the folder.
        """

    def commit(self, folder: str, step: int, content: bytes) -> str:
        """Writes the manifest, makes the folder visible as the step's newest generation, and points
        `latest` at it. Durable on return.

        If it raises, it has undone what it did, as far as the store still responds.

        Args:
            folder: The name of the temporary folder.
            step: The number of the step.
            content: The manifest.

        Returns:
            The folder's new name.
        """

    def latest(self) -> str | None:
        """Reads `latest`.

        Returns:
            The name of the folder in it; None if there is no `latest`.

        Raises:
            DamagedFile: If no save wrote its content.
        """

    def remove(self, *folders: str) -> None:
        """Makes folders invisible, then removes them. Ignores those that do not exist.

        Without folders, removes only what interrupted removals left.

        Args:
            folders: The names of committed or temporary folders.
        """

    def free(self) -> int | None:
        """Asks for the free space.

        Returns:
            Bytes that may still be written; None if that is unknown.
        """


# Where checkpoints are: a folder, a URL that fsspec supports, or a store of the caller's own.
Root = Union[str, "os.PathLike[str]", Backend]
# fsspec's, for a URL.
StorageOptions = Optional[Mapping[str, object]]
# The number of a step, or `latest`.
Step = Union[int, str]


def parse_latest(content: bytes, root: str) -> str:
    """The folder that the content of `latest` names. Raises DamagedFile if no save wrote it."""
    folder = layout.pointed_to(content)
    if folder is None:
        raise DamagedFile(f"{root}/{layout.LATEST}", LATEST_PROBLEM)
    return folder
