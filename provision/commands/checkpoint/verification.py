"""`provision checkpoint verify`: every file hashed; one that several checkpoints share is read once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from provision.commands.checkpoint.contents import TRIES, looked_up
from provision.core.types import Progress
from provision_runtime.checkpoint import (
    Backend,
    CheckpointError,
    Damage,
    catalog,
    disk_usage,
    layout,
    manifest,
    verification,
)
from provision_runtime.checkpoint.manifest import FileEntry, Manifest

ALL = "all"
Verdict = Literal["whole", "damaged", "unknown"]


@dataclass(frozen=True, kw_only=True)
class VerifiedCheckpoint:
    """verdict: "unknown" where it could not be asked (no permission, a newer schema, the disk fails); `problem` says why."""

    step: int
    folder: str
    verdict: Verdict
    problem: str
    files: int
    bytes: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True, kw_only=True)
class Verified:
    """bytes_read: what was hashed, shared files once."""

    root: str
    bytes_read: int
    checkpoints: tuple[VerifiedCheckpoint, ...]

    @property
    def is_whole(self) -> bool:
        return all(found.verdict == "whole" for found in self.checkpoints)


def verified(backend: Backend, step: int | str, console: Progress) -> Verified:
    """step: a number, "latest" or "all". What is replaced or pruned meanwhile is looked for again, or, of all, left out. Raises
    InvalidSpec where there is none."""
    for _ in range(TRIES):
        folders, of_latest = _folders(backend, step)
        found = _Run(backend, folders).all(console)
        present = set(backend.folders())
        kept = tuple(
            one for one in found.checkpoints if one.verdict == "whole" or one.folder in present
        )
        if kept:
            break
    return Verified(root=found.root, bytes_read=found.bytes_read, checkpoints=(*of_latest, *kept))


def _folders(backend: Backend, step: int | str) -> tuple[list[str], list[VerifiedCheckpoint]]:
    """And a row for `latest`, where that is damaged and matters."""
    folder, damage = looked_up(
        backend, "latest" if step == ALL else step
    )  # refuses where there is none
    rows = (
        [_row(layout.LATEST, "damaged", None, [Damage(".", layout.LATEST, damage.problem)])]
        if damage
        else []
    )
    return [str(name) for name in catalog.committed(backend)] if step == ALL else [folder], rows


class _Run:
    """One pass over some checkpoints; remembers what it hashed."""

    def __init__(self, backend: Backend, folders: list[str]) -> None:
        self._backend = backend
        self._contents = {folder: _content(backend, folder) for folder in folders}
        self._problems: dict[Hashable, str | None] = {}
        self._read = 0

    def all(self, console: Progress) -> Verified:
        total = sum(entry.size for entry in self._different_files())
        with console.meter("verifying", total) as meter:
            self._show = meter.advance
            found = tuple(self._one(folder, content) for folder, content in self._contents.items())
        return Verified(root=self._backend.root, bytes_read=self._read, checkpoints=found)

    def _one(
        self, folder: str, content: Manifest | CheckpointError | OSError
    ) -> VerifiedCheckpoint:
        if isinstance(content, Manifest):
            try:
                damages = self._damages(folder, content)
            except OSError as error:
                return _row(folder, "unknown", content, problem=_words(error))
            return _row(folder, "damaged" if damages else "whole", content, damages)
        if isinstance(content, errors.DamagedFile):
            return _row(folder, "damaged", None, [Damage(folder, manifest.NAME, content.problem)])
        return _row(folder, "unknown", None, problem=_words(content))

    def _damages(self, folder: str, content: Manifest) -> list[Damage]:
        keys = {entry.name: self._key(folder, entry) for entry in content.files}
        fresh = [entry for entry in content.files if keys[entry.name] not in self._problems]
        found = verification.check_files(self._backend, folder, content, fresh, self._advance)
        if (
            found and folder not in self._backend.folders()
        ):  # its names went; the files may be others' still
            return found
        problems = {damage.file: damage.problem for damage in found}
        self._problems.update({keys[entry.name]: problems.get(entry.name) for entry in fresh})
        known = [(entry, self._problems[keys[entry.name]]) for entry in content.files]
        of_files = [
            Damage(entry.home or folder, entry.name, said, content.names_in(entry.name))
            for entry, said in known
            if said
        ]
        return verification.find_foreign_files(self._backend, folder, content) + of_files

    def _key(self, folder: str, entry: FileEntry) -> Hashable:
        """The same for two files only if they are one, and are to be the same."""
        try:
            return disk_usage.key(self._backend, folder, entry), entry.size, entry.sha256
        except OSError:
            return folder, entry.name

    def _different_files(self) -> list[FileEntry]:
        contents = [
            (folder, content)
            for folder, content in self._contents.items()
            if isinstance(content, Manifest)
        ]
        return list(
            {
                self._key(folder, entry): entry
                for folder, content in contents
                for entry in content.files
            }.values()
        )

    def _advance(self, size: int) -> None:
        self._read += size
        self._show(size)


def _content(backend: Backend, folder: str) -> Manifest | CheckpointError | OSError:
    try:
        return catalog.read_manifest(backend, folder)
    except (CheckpointError, OSError) as error:
        return error


def _row(
    folder: str,
    verdict: Verdict,
    content: Manifest | None,
    damages: list[Damage] | None = None,
    problem: str = "",
) -> VerifiedCheckpoint:
    name = layout.parse(folder)
    return VerifiedCheckpoint(
        step=name.step if name else -1,
        folder=folder,
        verdict=verdict,
        problem=problem,
        files=len(content.files) if content else 0,
        bytes=content.bytes if content else 0,
        damages=tuple(damages or ()),
    )


def _words(error: CheckpointError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
