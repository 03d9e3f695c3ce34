"""`checkpoint verify`: hashes every file; one that several checkpoints share is read once."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Callable, ContextManager, Hashable

from ...dataclass import frozen
from .. import catalog, copies, layout, manifest, verification
from ..errors import CheckpointError, DamagedFile
from ..verification import Damage
from .contents import TRIES, look_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends import Backend, Step
    from ..manifest import FileEntry, Manifest

ALL = "all"
WHOLE, DAMAGED, UNKNOWN = "whole", "damaged", "unknown"
# Starts to show progress: is passed a number of bytes, and gives a function that is called with the
# size of each part, in any thread.
StartMeter = Callable[[int], ContextManager[Callable[[int], None]]]


@frozen
class CheckpointVerdict:
    """verdict: "whole", "damaged", or "unknown" if it could not be checked (no permission, a newer
    schema, a failing disk); `problem` is then the reason.
    """

    step: int
    folder: str
    verdict: str
    problem: str
    files: int
    bytes: int
    damages: tuple[Damage, ...]


@frozen
class Audit:
    """bytes_read: bytes hashed; shared files count once."""

    root: str
    bytes_read: int
    checkpoints: tuple[CheckpointVerdict, ...]

    @property
    def is_whole(self) -> bool:
        return all(row.verdict == WHOLE for row in self.checkpoints)


def no_meter(total: int) -> ContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


def audit(backend: Backend, step: Step, start_meter: StartMeter = no_meter) -> Audit:
    """step: a number, "latest" or "all".

    Starts again if the checkpoint is replaced or pruned meanwhile; with "all", omits it. Raises
    InspectionError if there is no checkpoint.
    """
    for _ in range(TRIES):
        folder, latest_damage = look_up(backend, "latest" if step == ALL else step)
        folders = [folder]
        if step == ALL:
            folders = [str(name) for name in catalog.committed(backend)]
        run = _AuditPass(backend)
        with start_meter(run.total_bytes(folders)) as run.show_progress:
            verdicts = [run.check(name) for name in folders]
        present = set(backend.folders())
        verdicts = [row for row in verdicts if row.verdict == WHOLE or row.folder in present]
        if verdicts:
            break
    if latest_damage:
        damage = Damage(".", layout.LATEST, latest_damage.problem)
        verdicts.insert(0, _verdict(layout.LATEST, DAMAGED, None, [damage]))
    if step == ALL:
        verdicts += run.check_copies()
    return Audit(backend.root, run.bytes_read, tuple(verdicts))


class _AuditPass:
    """One pass over some checkpoints; remembers what it hashed."""

    def __init__(self, backend: Backend) -> None:
        self.bytes_read = 0
        self.show_progress: Callable[[int], None] = lambda _: None
        self._backend = backend
        # The keys of files that were read and are whole: several checkpoints may have them.
        self._whole: set[Hashable] = set()

    def total_bytes(self, folders: Sequence[str]) -> int:
        sizes = {}
        for folder in folders:
            content = catalog.manifest_if_intact(self._backend, folder)
            for entry in content.files if content else ():
                sizes[self._key(folder, entry)] = entry.size
        return sum(sizes.values())

    def check(self, folder: str) -> CheckpointVerdict:
        content = None
        try:
            content = catalog.read_manifest(self._backend, folder)
            damages = self._find_damages(folder, content)
        except DamagedFile as error:
            damages = [Damage(folder, manifest.NAME, error.problem)]
        except (CheckpointError, OSError) as error:
            return _verdict(folder, UNKNOWN, content, problem=str(error))
        return _verdict(folder, DAMAGED if damages else WHOLE, content, damages)

    def check_copies(self) -> list[CheckpointVerdict]:
        """One verdict on all second copies, if one of them is damaged."""
        damages, size = [], 0
        names = copies.names(self._backend)
        for name in names:
            content = b""
            with suppress(FileNotFoundError):  # removed meanwhile
                content = self._backend.read(copies.FOLDER, name)
                if not copies.is_intact(name, content):
                    problem = "its content is not what its name says"
                    damages.append(Damage(copies.FOLDER, name, problem))
            size += len(content)
        self.bytes_read += size
        verdict = _verdict(copies.FOLDER, DAMAGED, None, damages)
        return [replace(verdict, files=len(names), bytes=size)] if damages else []

    def _find_damages(self, folder: str, content: Manifest) -> list[Damage]:
        damages = verification.find_foreign_files(self._backend, folder, content)
        unread = [entry for entry in content.files if self._key(folder, entry) not in self._whole]
        damages += verification.check_files(self._backend, folder, content, unread, self._advance)
        damaged = {damage.file for damage in damages}
        whole = (entry for entry in unread if entry.name not in damaged)
        self._whole.update(self._key(folder, entry) for entry in whole)
        return damages

    def _key(self, folder: str, entry: FileEntry) -> Hashable:
        """Equal for two files only if they are one file with the same expected content."""
        try:
            return self._backend.stat(folder, entry.name).key, entry.size, entry.digest
        except OSError:
            return folder, entry.name

    def _advance(self, size: int) -> None:
        self.bytes_read += size
        self.show_progress(size)


def _verdict(
    folder: str,
    verdict: str,
    content: Manifest | None,
    damages: Sequence[Damage] = (),
    problem: str = "",
) -> CheckpointVerdict:
    name = layout.parse(folder)
    return CheckpointVerdict(
        step=name.step if name else -1,
        folder=folder,
        verdict=verdict,
        problem=problem,
        files=len(content.files) if content else 0,
        bytes=content.bytes if content else 0,
        damages=tuple(damages),
    )
