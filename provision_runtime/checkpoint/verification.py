"""Checks that the files of a checkpoint are what was committed. Works without torch, and without
the ranks that wrote it.

Trusts nothing: hashes every byte, and reports files that are not in the manifest.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Callable, Dict, Tuple

from ..dataclass import frozen
from . import catalog, layout, manifest
from .errors import DamagedFile
from .hashes import checker
from .items import Names
from .storage import READ_BYTES, FileKey, Step, Storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .manifest import FileEntry, Manifest

WORKERS = 3
# Whether a file of the disk, by its key, has this size and this hash.
Known = Dict[Tuple[FileKey, int, str], bool]


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


def check_step(storage: Storage, step: Step) -> list[Damage]:
    """All damage of a step. Raises NoCheckpoint; OSError if the disk fails."""
    for _ in range(catalog.TRIES):
        folder = catalog.folder_of(storage, step)
        _, damages = check_folder(storage, folder)
        if not damages or folder in storage.folders():
            break
        # It was replaced or pruned while it was read.
    return damages


def check_folder(
    storage: Storage,
    folder: str,
    progress: Callable[[int], None] = lambda _: None,
    checked: Known | None = None,
) -> tuple[Manifest | None, list[Damage]]:
    """What the manifest of a checkpoint says, and all damage. progress, checked: as for check_files.

    Raises CheckpointError for a manifest of another version, OSError if the disk fails.
    """
    try:
        content = catalog.read_manifest(storage, folder)
    except DamagedFile as error:
        return None, [Damage(folder, manifest.NAME, error.problem)]
    damages = find_foreign_files(storage, folder, content)
    return content, damages + check_files(
        storage, folder, content, content.files, progress, checked
    )


def find_foreign_files(storage: Storage, folder: str, content: Manifest) -> list[Damage]:
    """Files that are not in the manifest: something else wrote into the folder."""
    committed_names = {manifest.NAME, *(entry.name for entry in content.files)}
    return [
        Damage(folder, name, "it is not in the manifest")
        for name in sorted(storage.files(folder))
        if name not in committed_names
    ]


def check_files(
    storage: Storage,
    folder: str,
    content: Manifest,
    entries: Sequence[FileEntry],
    progress: Callable[[int], None] = lambda _: None,
    checked: Known | None = None,
) -> list[Damage]:
    """The damage of some of a checkpoint's files, in their order; a few are read at a time.

    progress: called with the bytes of each file that was checked, in any thread. checked: what is in it
    is not read again; what was read is put into it.
    """
    hashed: Known = {} if checked is None else checked

    def check(entry: FileEntry) -> str | None:
        try:
            return check_file(storage, folder, entry, hashed)
        finally:
            progress(entry.size)

    damages = []
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-verify") as pool:
        for entry, problem in zip(entries, pool.map(check, entries)):
            if problem:
                names = content.names_in(entry.name)
                damages.append(Damage(folder, entry.name, problem, names))
    if damages:
        layout.damaged.add(storage.root)
    return damages


def check_file(storage: Storage, folder: str, entry: FileEntry, checked: Known) -> str | None:
    """What is wrong with a file, in words. checked: as for check_files."""
    name, digest, committed = checker(entry.digest)
    try:
        size, _, file = storage.stat(folder, entry.name)
        if size != entry.size:
            return f"{size} bytes instead of {entry.size}"
        key = file, size, committed
        if key not in checked:
            block = memoryview(bytearray(min(READ_BYTES, size)))
            for offset in range(0, size, READ_BYTES):
                part = block[: size - offset]
                count = storage.read_into(folder, entry.name, offset, part)
                digest.update(part[:count])
            checked[key] = digest.hexdigest() == committed
    except FileNotFoundError:
        return "it is missing"
    return None if checked[key] else f"its {name} is not the committed one"
