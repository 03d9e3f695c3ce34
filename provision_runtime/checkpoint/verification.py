"""Checks that the files of a checkpoint are what was committed. Works without torch, and without
the ranks that wrote it.

Trusts nothing: hashes every byte, and reports files that are not in the manifest.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Callable

from ..dataclass import frozen
from . import catalog, choice, corrupt_files, layout, manifest
from .errors import DamagedFile
from .hashes import checker
from .items import Names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backends import Backend, Step
    from .manifest import FileEntry, Manifest

WORKERS = 3


@frozen
class Damage:
    """A file that is not what was committed.

    Attributes:
        folder: The name of the checkpoint below the root.
        file: The name of the file in it.
        problem: What is wrong, in words.
        tensors: The names of the values in the file, if known.
    """

    folder: str
    file: str
    problem: str
    tensors: Names = ()

    def error(self, root: str) -> DamagedFile:
        """The damage as an exception.

        Args:
            root: The path or URL of the root.

        Returns:
            The exception, which is not raised.
        """
        return DamagedFile(f"{root}/{self.folder}/{self.file}", self.problem, self.tensors)


def check_step(backend: Backend, step: Step) -> list[Damage]:
    """All damage of a step, and of `latest` if that was needed. Raises NoCheckpoint; OSError if the
    store fails.
    """
    for _ in range(catalog.TRIES):
        folder, latest_damage = choice.look_up(backend, step)
        damages = check_folder(backend, folder)
        if latest_damage:
            damages.insert(0, Damage(".", layout.LATEST, latest_damage.problem))
        if not damages or folder in backend.folders():
            break
        # It was replaced or pruned while it was read.
    return damages


def check_folder(backend: Backend, folder: str) -> list[Damage]:
    """All damage of one checkpoint. Raises OSError if the store fails."""
    try:
        content = catalog.read_manifest(backend, folder)
    except DamagedFile as error:
        return [Damage(folder, manifest.NAME, error.problem)]
    damages = find_foreign_files(backend, folder, content)
    return damages + check_files(backend, folder, content, content.files)


def find_foreign_files(backend: Backend, folder: str, content: Manifest) -> list[Damage]:
    """Files that are not in the manifest: something else wrote into the folder."""
    committed_names = {manifest.NAME, *(entry.name for entry in content.files)}
    return [
        Damage(folder, name, "it is not in the manifest")
        for name in sorted(backend.files(folder))
        if name not in committed_names
    ]


def check_files(
    backend: Backend,
    folder: str,
    content: Manifest,
    entries: Sequence[FileEntry],
    progress: Callable[[int], None] = lambda _: None,
) -> list[Damage]:
    """The damage of some of a checkpoint's files, in their order; a few are read at a time.

    progress: called with the bytes of each file that was read, in any thread.
    """
    buffers = threading.local()

    def check(entry: FileEntry) -> str | None:
        if not hasattr(buffers, "block"):
            buffers.block = memoryview(bytearray(backend.block))
        try:
            return check_file(backend, folder, entry, buffers.block)
        finally:
            progress(entry.size)

    damages = []
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-verify") as pool:
        for entry, problem in zip(entries, pool.map(check, entries)):
            if problem:
                names = damaged_names(backend, folder, content, entry)
                damages.append(Damage(folder, entry.name, problem, names))
    for damage in damages:
        corrupt_files.add(backend.root, damage.file)
    return damages


def damaged_names(backend: Backend, folder: str, content: Manifest, entry: FileEntry) -> Names:
    """The tensors and objects of a damaged file that are damaged; all in it if that is unknown."""
    names = content.names_in(entry.name)
    with suppress(OSError):
        read = memoryview(backend.read(folder, entry.name))
        damaged = {
            name
            for name, record in content.records()
            if record.file == entry.name
            and content.digest_of(name, record, read[record.at : record.at + record.size])
            != record.digest
        }
        names = tuple(sorted(damaged)) or names
    return names


def check_file(backend: Backend, folder: str, entry: FileEntry, block: memoryview) -> str | None:
    """What is wrong with a file, in words. block: memory for reading it."""
    name, digest, committed = checker(entry.digest)
    try:
        size = backend.stat(folder, entry.name).size
        if size != entry.size:
            return f"{size} bytes instead of {entry.size}"
        for offset in range(0, size, len(block)):
            part = block[: min(len(block), size - offset)]
            count = backend.read_into(folder, entry.name, offset, part)
            digest.update(part[:count])
    except FileNotFoundError:
        return "it is missing"
    if digest.hexdigest() != committed:
        return f"its {name} is not the committed one"
    return None
