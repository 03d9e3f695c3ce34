"""Loading a checkpoint into a state dict: rank 0 chooses it, all ranks verify it, and only then is
it read.

The state dict is not changed before every rank has matched it, verified every file and unpickled
the objects. match.py says what a state dict needs, reader.py reads it into memory.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.store import RanksMissing, StoreLost
from ..dataclass import frozen
from . import catalog, copies, corrupt_files, optimizer_state, streams, verification
from .choice import PREVIOUS, REFUSE, choose, describe_absence, step_number
from .errors import CheckpointError, CheckpointWarning, DamagedFile, NoCheckpoint, Vanished
from .items import Names, StateDict
from .match import LoadPlan, match
from .nested import Expansion
from .progress import LoadProgress, line_printer
from .rank_errors import exchange_or_fail, run_together
from .reader import Reader
from .saver import BACKGROUND
from .writer import ByteCount

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..comm.ranks import Ranks
    from .backends import Backend, Step
    from .manifest import Manifest
    from .progress import LoadCallback

# How often a load starts again when its checkpoint is overwritten or pruned meanwhile.
TRIES = 100


@frozen
class LoadReport:
    """A checkpoint that was loaded.

    Attributes:
        step: The number of the step.
        folder: The checkpoint's path, or its URL.
        bytes: Bytes that this rank read into the state dict.
        verify_s: Seconds until all ranks had verified their files.
        read_s: Seconds in which the values were read.
        refused: A sentence per damage of a newer checkpoint that was skipped
            (`on_damage="previous"`), or of `latest`.
        missing: Names that the checkpoint lacks, whose values on this rank stayed (`strict=False`).
        unexpected: Names of the checkpoint that this rank's state dict does not have.
    """

    step: int
    folder: str
    bytes: int
    verify_s: float
    read_s: float
    refused: Names = ()
    missing: Names = ()
    unexpected: Names = ()

    @property
    def rate(self) -> float:
        """Bytes per second, verification included: bytes / (verify_s + read_s)."""
        seconds = self.verify_s + self.read_s
        return self.bytes / seconds if seconds else 0.0


@frozen
class _Prepared:
    """What a rank holds once it may read. objects: the loaded ones by name. bytes: to read."""

    expansion: Expansion
    reader: Reader
    plan: LoadPlan
    objects: Mapping[str, Any]
    content: Manifest
    bytes: int


def load(
    state_dict: StateDict,
    open_backend: Callable[[], Backend],
    step: Step,
    ranks: Ranks,
    *,
    on_damage: str,
    allow_pickle: bool,
    strict: bool = True,
    progress: LoadCallback | None = None,
) -> LoadReport:
    # A background save uses these ranks' exchanges too, and may be the checkpoint to load.
    BACKGROUND.finish()
    backend, problem, origin = None, None, ""
    try:
        if on_damage not in (REFUSE, PREVIOUS):
            raise ValueError(f"on_damage={on_damage!r}: pass {REFUSE!r} or {PREVIOUS!r}")
        step_number(step)
        backend = open_backend()
        origin = f" from {backend.root}"
    except Exception as error:
        problem = error
    try:
        # If a rank with a wrong argument raised alone, it would be one load behind the others from
        # then on.
        exchange_or_fail("checkpoint/load", ranks, None, problem, "nothing was loaded")
        assert backend is not None
        progress = progress or line_printer("loading", ranks)
        rank_load = _Load(state_dict, backend, ranks, allow_pickle, strict, progress)
        for _ in range(TRIES):
            folders, refused = _choose_on_rank_0(backend, step, on_damage, ranks)
            try:
                return rank_load.first_intact(folders, refused)
            except Vanished:
                continue
    except (RanksMissing, StoreLost) as error:
        raise CheckpointError(f"nothing was loaded{origin}: {error}") from error
    raise Vanished(f"the checkpoint in {backend.root} was replaced {TRIES} times during the load")


def _choose_on_rank_0(
    backend: Backend, step: Step, on_damage: str, ranks: Ranks
) -> tuple[list[str], list[str]]:
    """The folders, and a sentence about the damage of `latest`, if any.

    Raises on every rank NoCheckpoint, and DamagedFile unless damage may be skipped.
    """

    def choose_folders() -> tuple[list[str], str, list[str]]:
        folders, damage = choose(backend, step, on_damage)
        absence = "" if folders else describe_absence(backend, step)
        return folders, absence, [damage.path, damage.problem] if damage else []

    folders, absence, damage = collective.broadcast("checkpoint/choose", ranks, choose_folders)
    refused = []
    if damage:
        error = DamagedFile(*damage)
        if on_damage != PREVIOUS:
            raise error
        if ranks.rank == 0 and folders:
            warnings.warn(f"{error}; trying {folders[0]}", CheckpointWarning, stacklevel=4)
        refused.append(str(error))
    if not folders:
        raise NoCheckpoint(absence)
    return folders, refused


class _Load:
    """One rank's part in a load."""

    def __init__(
        self,
        state_dict: StateDict,
        backend: Backend,
        ranks: Ranks,
        allow_pickle: bool,
        strict: bool,
        progress: LoadCallback,
    ) -> None:
        self._progress = progress
        # Bytes that this rank verifies and reads.
        self._count = ByteCount()
        self._state_dict = state_dict
        self._backend = backend
        self._ranks = ranks
        self._allow_pickle = allow_pickle
        self._strict = strict

    def first_intact(self, folders: Sequence[str], refused: list[str]) -> LoadReport:
        """Loads the first of the folders that is intact; adds to `refused` a sentence per damage."""
        *earlier, last = folders
        for folder, following in zip(earlier, folders[1:]):
            try:
                return self._load(folder, refused)
            except DamagedFile as error:
                refused.append(str(error))
                if self._ranks.rank == 0:
                    text = f"{error}; trying {following}"
                    warnings.warn(text, CheckpointWarning, stacklevel=4)
        return self._load(last, refused)

    def _load(self, folder: str, refused: Sequence[str]) -> LoadReport:
        started = time.monotonic()
        self._count = count = ByteCount()

        def report() -> None:
            seconds = time.monotonic() - started
            self._progress(LoadProgress(count.total, count.written, seconds))

        try:
            prepared = run_together(
                "checkpoint/verify", self._ranks, lambda: self._prepare(folder), report
            )
        except DamagedFile as error:
            # On all ranks, since the next save of any of them may link the file.
            corrupt_files.add(self._backend.root, error.path.rpartition("/")[2])
            raise
        self._check_same(folder, prepared)
        verified = time.monotonic()
        run_together("checkpoint/read", self._ranks, lambda: self._fill(folder, prepared), report)
        return LoadReport(
            step=prepared.content.step,
            folder=f"{self._backend.root}/{folder}",
            bytes=prepared.bytes,
            verify_s=verified - started,
            read_s=time.monotonic() - verified,
            refused=tuple(refused),
            missing=prepared.plan.missing,
            unexpected=prepared.plan.unexpected,
        )

    def _prepare(self, folder: str) -> _Prepared:
        """Plans this rank's reads, verifies their files and its share of the others, and unpickles
        the objects.
        """
        content = None
        try:
            content = _read_manifest(self._backend, folder)
            adapt = partial(optimizer_state.adapt, content)
            expansion = Expansion(self._state_dict, adapt)
            plan = match(expansion, content, self._strict)
            self._count.total = plan.bytes(content)
            # The files that this rank reads, and its share of the others.
            files = plan.files(content)
            rank, world_size = self._ranks.rank, self._ranks.world_size
            files.update(entry.name for entry in content.files[rank::world_size])
            verify_files(self._backend, folder, content, files, self._count)
            if rank == 0:
                for damage in verification.find_foreign_files(self._backend, folder, content):
                    raise damage.error(self._backend.root)
            reader = Reader(self._backend, folder, content)
            reader.check_packs(plan.tensors)
            objects = {name: reader.read_object(name, self._allow_pickle) for name in plan.objects}
            self._count.add(sum(content.objects[name].size for name in objects))
        except (DamagedFile, OSError) as error:
            _raise_if_vanished(self._backend, folder, content, error)
            raise
        return _Prepared(expansion, reader, plan, objects, content, plan.bytes(content))

    def _check_same(self, folder: str, prepared: _Prepared) -> None:
        """Raises Vanished, on all ranks, if they do not see the same checkpoint; CheckpointError
        unless each of the names for which some ranks have no value is another rank's: of a model
        that is cut into parts, each has its own names.
        """
        plan = prepared.plan
        reports = self._ranks.exchange(
            "checkpoint/same", [prepared.content.digest, plan.unused if self._strict else []]
        )
        if len({digest for digest, _ in reports}) > 1:
            raise Vanished(
                f"{folder} was replaced while it was read: the ranks do not see the same checkpoint"
            )
        unused = {name for _, names in reports for name in names}
        if not unused:
            return
        used = prepared.expansion.values.keys()
        for names in self._ranks.exchange("checkpoint/use", sorted(unused & used)):
            unused.difference_update(names)
        if unused:
            raise CheckpointError(
                f"the state dict has no value for {', '.join(sorted(unused))} of the checkpoint: "
                "pass strict=False to leave them out (of an optimizer, pass itself: before its first "
                "step its state_dict() has no state)"
            )

    def _fill(self, folder: str, prepared: _Prepared) -> None:
        reads = prepared.plan.tensors
        devices = streams.devices_of(read.target for read in reads)
        streams.wait_for(devices)  # earlier work could still overwrite what is read
        try:
            prepared.reader.read_tensors(reads, self._count.add)
        except OSError as error:
            _raise_if_vanished(self._backend, folder, prepared.content, error)
            raise
        streams.wait_for(devices)
        prepared.expansion.restore(prepared.objects)


def _read_manifest(backend: Backend, folder: str) -> Manifest:
    try:
        return catalog.read_manifest(backend, folder)
    except DamagedFile as error:
        if not copies.heal_manifest(backend, folder):
            raise
        _warn_of_healing(error)
        return catalog.read_manifest(backend, folder)


def _warn_of_healing(error: DamagedFile) -> None:
    text = f"{error}; it was replaced by its other copy"
    warnings.warn(text, CheckpointWarning, stacklevel=2)


def verify_files(
    backend: Backend, folder: str, content: Manifest, names: Collection[str], count: ByteCount
) -> None:
    """Raises the first damage in these files that cannot be healed. count: of what is verified."""
    entries = {entry.name: entry for entry in content.files if entry.name in names}
    count.total += sum(entry.size for entry in entries.values())
    damages = []
    for damage in verification.check_files(
        backend, folder, content, [*entries.values()], count.add
    ):
        if copies.heal(backend, damage.folder, damage.file, entries[damage.file]):
            _warn_of_healing(damage.error(backend.root))
        else:
            damages.append(damage)
    if damages:
        raise damages[0].error(backend.root)


def _raise_if_vanished(
    backend: Backend, folder: str, content: Manifest | None, error: Exception
) -> None:
    """Raises Vanished if the folder is gone or another checkpoint has its name: a pruned step may
    be saved again.
    """
    is_present = folder in backend.folders()
    if not is_present or catalog.manifest_if_intact(backend, folder) != content:
        raise Vanished(f"{folder} was replaced or pruned while it was read") from error
