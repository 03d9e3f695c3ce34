"""Second copies of files, so that one damaged file never costs every checkpoint.

Checkpoints share what did not change: one file on the disk with a name in each of them. The
folder `copies` below the root holds another copy, named by its content, of every file that more
than one checkpoint needs, and of all files of a checkpoint that has no other near it. `make`
writes these before old checkpoints are removed; `heal` replaces a damaged file by its other copy.
Works without torch.
"""

from __future__ import annotations

import errno
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable

from . import catalog, layout, manifest
from .errors import DamagedFile
from .hashes import has_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .manifest import FileEntry
    from .storage import FileKey, Storage

FOLDER = "copies"
# Names of copies begin with a digest (manifest.FileEntry); nothing else in the folder is ever removed.
NAMED_BY_CONTENT = re.compile(r"([0-9a-f]{40}(?:[0-9a-f]{24})?)[^0-9a-f].*")
WORKERS = 3
SPACE_MARGIN = 1.1


@dataclass
class Content:
    """The content of a file. folders: of the checkpoints that need it. copies: a folder and a name
    for each physical copy, by its key.
    """

    entry: FileEntry
    folders: list[str] = field(default_factory=list)
    copies: dict[FileKey | None, tuple[str, str]] = field(default_factory=dict)


def name_of(entry: FileEntry) -> str:
    """The name of a file's copy."""
    match = NAMED_BY_CONTENT.fullmatch(entry.name)
    is_named = match is not None and match[1] == entry.digest
    return entry.name if is_named else f"{entry.digest}-{entry.name}"


def names(storage: Storage) -> list[str]:
    """The copies that exist."""
    try:
        present = storage.files(FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in present if NAMED_BY_CONTENT.fullmatch(name))


def survey(
    storage: Storage,
    folders: Sequence[str],
    is_included: Callable[[str], bool] = lambda _: True,
) -> dict[str, Content]:
    """What these checkpoints need, by digest, and every physical copy of it that they and `copies`
    have.

    Leaves out files that do not exist, and checkpoints whose manifest cannot be read. is_included:
    chooses by digest.
    """
    contents: dict[str, Content] = {}
    for folder in folders:
        read = catalog.manifest_if_intact(storage, folder)
        for entry in read.files if read else ():
            if is_included(entry.digest):
                content = contents.setdefault(entry.digest, Content(entry))
                content.folders.append(folder)
                content.copies.setdefault(_key(storage, folder, entry.name), (folder, entry.name))
    for content in contents.values():
        name = name_of(content.entry)
        content.copies.setdefault(_key(storage, FOLDER, name), (FOLDER, name))
        content.copies.pop(None, None)
    return contents


def missing(
    storage: Storage,
    remaining: Sequence[str],
    is_alone: bool,
    is_included: Callable[[str], bool] = lambda _: True,
) -> tuple[dict[str, Content], list[str]]:
    """The copies that these checkpoints lack, by name; and names of copies that they do not need.

    remaining: the newest first. is_alone: no checkpoint shortly before the newest stays, so that all of
    its files are needed twice; so it is if there is only one.
    """
    contents = survey(storage, remaining, is_included)
    is_alone = is_alone or len(remaining) == 1
    if is_alone:
        location = (remaining[0], manifest.NAME)
        read = storage.read(*location)
        entry = manifest.FileEntry(manifest.NAME, len(read), manifest.possible_digests(read)[0])
        if is_included(entry.digest):
            copies = {_key(storage, *location): location}
            contents[entry.digest] = Content(entry, [remaining[0]], copies)
    needed = {
        name_of(content.entry): content
        for content in contents.values()
        if len(content.folders) > 1 or (is_alone and remaining[0] in content.folders)
    }
    present = names(storage)
    lacking = {
        name: content
        for name, content in needed.items()
        if name not in present and len(content.copies) < 2
    }
    unneeded = [name for name in present if is_included(name) and name not in needed]
    return lacking, unneeded


def make(
    storage: Storage, remaining: Sequence[str], is_alone: bool, rank: int = 0, world_size: int = 1
) -> int:
    """Writes this rank's share of the copies that these checkpoints lack, and removes copies that
    they do not need. Returns the bytes written.

    Every file is hashed as it is copied. Raises OSError if the disk fails or is too full (nothing is
    written then), DamagedFile if a file is damaged and there is no intact copy.
    """

    def is_assigned(digest: str) -> bool:
        return int(digest[:8], 16) % world_size == rank

    lacking, unneeded = missing(storage, remaining, is_alone, is_assigned)
    remove(storage, unneeded)
    size = sum(content.entry.size for content in lacking.values())
    free = storage.free()
    if size * world_size * SPACE_MARGIN > free:
        text = f"the second copies need about {size * world_size} bytes; {free} are free"
        raise OSError(errno.ENOSPC, text, f"{storage.root}/{FOLDER}")

    def copy(name: str) -> DamagedFile | None:
        content = lacking[name]
        originals = [(folder, content.entry.name) for folder in content.folders]
        for location in (*content.copies.values(), *originals):
            intact = _read_intact(storage, *location, content.entry)
            if intact is not None:
                storage.replace(FOLDER, name, intact)
                return None
        # Another process may have pruned meanwhile.
        if not {*content.folders} & {str(folder) for folder in catalog.committed(storage)}:
            return None
        layout.damaged.add(storage.root)
        path = f"{storage.root}/{remaining[0]}/{content.entry.name}"
        return DamagedFile(path, "it is missing, or its content is not the committed one")

    if not lacking:
        return 0
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-copies") as pool:
        damages = [damage for damage in pool.map(copy, lacking) if damage]
    with suppress(FileNotFoundError):  # nothing was left to copy
        storage.flush(FOLDER)
    if damages:
        raise damages[0]
    return size


def remove(storage: Storage, unneeded: Sequence[str]) -> None:
    for name in unneeded:
        with suppress(FileNotFoundError):  # two processes may prune
            storage.discard(FOLDER, name)


def heal(storage: Storage, home: str, name: str, entry: FileEntry) -> bool:
    """Replaces a damaged or missing file by another copy of its content, in every checkpoint that
    has the damaged one.

    False if there is no intact copy, or nothing can be written there.
    """
    foreign = storage.linked()
    folders = [str(folder) for folder in catalog.committed(storage)]
    damaged = _key(storage, home, name)
    targets, content = [(home, name)], None
    for location in [(FOLDER, name_of(entry)), *((folder, entry.name) for folder in folders)]:
        key = _key(storage, *location)
        if key is None or location == (home, name):
            continue
        if key != damaged:
            content = content or _read_intact(storage, *location, entry)
        elif location[0] not in foreign:
            targets.append(location)
    if content is None or home in foreign:
        return False
    try:
        for folder, target in targets:
            same = home if folder != home and target == name else None
            storage.replace(folder, target, content, same)
            storage.flush(folder)
    except OSError:
        return False
    return True


def heal_manifest(storage: Storage, folder: str) -> bool:
    """The same for a damaged manifest. Its digest, or what remains of it, finds its copy."""
    with suppress(OSError):
        for digest in manifest.possible_digests(storage.read(folder, manifest.NAME)):
            entry = manifest.FileEntry(manifest.NAME, 0, digest)
            is_digest = NAMED_BY_CONTENT.fullmatch(name_of(entry))
            if is_digest and heal(storage, folder, manifest.NAME, entry):
                return True
    return False


def is_intact(name: str, content: bytes) -> bool:
    """Whether a copy of this name has the content that it should have."""
    match = NAMED_BY_CONTENT.fullmatch(name)
    assert match is not None
    if name.endswith(manifest.NAME):
        return set(manifest.possible_digests(content)) == {match[1]}
    return has_digest(content, match[1])


def _key(storage: Storage, folder: str, name: str) -> FileKey | None:
    """None if the file does not exist."""
    try:
        return storage.stat(folder, name).key
    except OSError:
        return None


def _read_intact(storage: Storage, folder: str, name: str, entry: FileEntry) -> bytes | None:
    """The content of a file; None if it is not what was committed."""
    try:
        content = storage.read(folder, name)
    except OSError:
        return None
    return content if is_intact(name_of(entry), content) else None
