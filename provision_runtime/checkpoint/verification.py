"""Whether the files of a checkpoint are what was committed. Works without torch, and without the ranks that wrote.

Nothing is taken on trust: every byte is hashed, and a file that nobody committed is damage too. By SHA-256, unless the caller asks for
the quickest hash that was committed.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from . import catalog, corrupt_files, manifest
from .hashes import quickest_of, sha256_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backends import Backend

WORKERS = 3


@dataclass(frozen=True)
class Damage:
    """A file that is not what was committed; tensors: the names of what lies in it."""

    folder: str
    file: str
    problem: str
    tensors: tuple[str, ...] = ()

    def error(self, root: str) -> manifest.DamagedFile:
        return manifest.DamagedFile(f"{root}/{self.folder}/{self.file}", self.problem, self.tensors)


def damages(backend: Backend, folder: str) -> list[Damage]:
    """All that is wrong with one checkpoint; nothing where it is whole. Raises OSError where the store fails."""
    try:
        content = catalog.read_manifest(backend, folder)
    except manifest.DamagedFile as error:
        return [Damage(folder, manifest.NAME, error.problem)]
    return strangers(backend, folder, content) + check(backend, folder, content, content.files)


def strangers(backend: Backend, folder: str, content: manifest.Manifest) -> list[Damage]:
    """Files that nobody committed: somebody else wrote here."""
    known = {manifest.NAME} | {entry.name for entry in content.files if entry.home is None}
    return [
        Damage(folder, name, "it is not in the manifest")
        for name in sorted(backend.files(folder))
        if name not in known
    ]


def check(
    backend: Backend,
    folder: str,
    content: manifest.Manifest,
    entries: Sequence[manifest.FileEntry],
    progress: Callable[[int], None] = lambda _: None,
    quickly: bool = False,
) -> list[Damage]:
    """What is wrong with some of a checkpoint's files, in their order; a few are read at a time. progress: called with the bytes of
    each that was read, in any thread. quickly: not by SHA-256 where there is a faster hash (hashes.py)."""
    buffers = threading.local()

    def problem_of(entry: manifest.FileEntry) -> str | None:
        if not hasattr(buffers, "block"):
            buffers.block = memoryview(bytearray(backend.traits.block))
        problem = _problem(backend, entry.home or folder, entry, buffers.block, quickly)
        progress(entry.size)
        return problem

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-verify") as pool:
        found = zip(entries, pool.map(problem_of, entries))
        made = [
            Damage(entry.home or folder, entry.name, problem, content.names_in(entry.name))
            for entry, problem in found
            if problem
        ]
    for damage in made:
        corrupt_files.add(backend.root, damage.file)
    return made


def _problem(
    backend: Backend, folder: str, entry: manifest.FileEntry, block: memoryview, quickly: bool
) -> str | None:
    try:
        size = backend.size(folder, entry.name)
        if size != entry.size:
            return f"{size} bytes instead of {entry.size}"
        name, digest, committed = quickest_of(entry) if quickly else sha256_of(entry)
        for offset in range(0, entry.size, len(block)):
            part = block[: min(len(block), entry.size - offset)]
            count = backend.read_into(folder, entry.name, offset, part)
            digest.update(part[:count])
        return None if digest.hexdigest() == committed else f"its {name} is not the committed one"
    except FileNotFoundError:
        return "it is missing"
