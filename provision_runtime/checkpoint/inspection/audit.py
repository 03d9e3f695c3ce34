"""`checkpoint verify`: hashes every file; one that several checkpoints share is read once."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Callable, ContextManager

from ...dataclass import frozen
from .. import catalog, copies, verification
from ..errors import CheckpointError
from ..verification import Damage, Known

if TYPE_CHECKING:
    from ..storage import Step, Storage

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


def audit(storage: Storage, step: Step, start_meter: StartMeter = no_meter) -> Audit:
    """step: a number, "latest" or "all".

    Starts again if the checkpoint is replaced or pruned meanwhile; with "all", omits it. Raises
    NoCheckpoint.
    """
    for _ in range(catalog.TRIES):
        folders = [catalog.folder_of(storage, "latest" if step == ALL else step)]
        if step == ALL:
            folders = [str(name) for name in catalog.committed(storage)]
        contents = (catalog.manifest_if_intact(storage, folder) for folder in folders)
        hashed: Known = {}
        with start_meter(sum(content.bytes for content in contents if content)) as advance:
            verdicts = [_check(storage, folder, hashed, advance) for folder in folders]
        present = set(storage.folders())
        verdicts = [row for row in verdicts if row.verdict == WHOLE or row.folder in present]
        if verdicts:
            break
    bytes_read = sum(size for _, size, _ in hashed)
    if step == ALL:
        second_copies = _check_copies(storage)
        bytes_read += second_copies.bytes
        verdicts += [second_copies] if second_copies.damages else []
    return Audit(storage.root, bytes_read, tuple(verdicts))


def _check_copies(storage: Storage) -> CheckpointVerdict:
    """One verdict on all second copies."""
    damages, size = [], 0
    names = copies.names(storage)
    for name in names:
        with suppress(FileNotFoundError):  # removed meanwhile
            content = storage.read(copies.FOLDER, name)
            size += len(content)
            if not copies.is_intact(name, content):
                damages.append(Damage(copies.FOLDER, name, "its content is not what its name says"))
    verdict = DAMAGED if damages else WHOLE
    return CheckpointVerdict(-1, copies.FOLDER, verdict, "", len(names), size, tuple(damages))


def _check(
    storage: Storage, folder: str, hashed: Known, progress: Callable[[int], None]
) -> CheckpointVerdict:
    step, content, problem = catalog.step_of(folder) or 0, None, ""
    damages: list[Damage] = []
    try:
        content, damages = verification.check_folder(storage, folder, progress, hashed)
    except (CheckpointError, OSError) as error:
        problem = str(error)
    verdict = DAMAGED if damages else WHOLE
    if problem:
        verdict = UNKNOWN
    files, size = (len(content.files), content.bytes) if content else (0, 0)
    return CheckpointVerdict(step, folder, verdict, problem, files, size, tuple(damages))
