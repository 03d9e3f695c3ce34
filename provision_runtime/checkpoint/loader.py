"""Loading a checkpoint into a state dict: rank 0 chooses it, all ranks verify it, and only then is
it read.

The state dict is not changed before every rank has matched it, verified every file and unpickled
the objects. match.py says what a state dict needs, reader.py reads it into memory.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..comm import collective
from ..comm.store import RanksMissing, StoreLost
from ..dataclass import frozen
from . import catalog, copies, layout, optimizer_state, streams, verification
from .catalog import PREVIOUS, REFUSE, choose, describe_absence, step_number
from .errors import CheckpointError, CheckpointWarning, DamagedFile, NoCheckpoint, Vanished
from .items import Names, StateDict
from .match import LoadPlan, match
from .nested import Expansion
from .progress import LoadCallback, LoadProgress, line_printer
from .rank_errors import exchange_or_fail, run_together
from .reader import Reader
from .saver import BACKGROUND
from .storage import Root, Step, Storage
from .writer import ByteCount

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..comm.ranks import Ranks
    from .manifest import Manifest

# How often a load starts again when its checkpoint is overwritten or pruned meanwhile.
TRIES = 100


@frozen
class LoadReport:
    """A checkpoint that was loaded.

    Attributes:
        step: The number of the step.
        folder: The checkpoint's path.
        bytes: Bytes that this rank read into the state dict.
        seconds: How long this rank verified and read.
        refused: A sentence per damage of a newer checkpoint that was skipped
            (`on_damage="previous"`).
        missing: Names that the checkpoint lacks, whose values on this rank stayed (`strict=False`).
        unexpected: Names of the checkpoint that this rank's state dict does not have.
    """

    step: int
    folder: str
    bytes: int
    seconds: float
    refused: Names = ()
    missing: Names = ()
    unexpected: Names = ()


@frozen
class _Prepared:
    """What a rank holds once it may read. objects: the loaded ones by name."""

    expansion: Expansion
    reader: Reader
    plan: LoadPlan
    objects: Mapping[str, Any]
    content: Manifest


def load(
    state_dict: StateDict,
    root: Root,
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
    storage, problem, origin = None, None, ""
    try:
        if on_damage not in (REFUSE, PREVIOUS):
            raise ValueError(f"on_damage={on_damage!r}: pass {REFUSE!r} or {PREVIOUS!r}")
        step_number(step)
        storage = Storage(root)
        origin = f" from {storage.root}"
    except Exception as error:
        problem = error

    def choose_folders() -> tuple[list[str], str]:
        assert storage is not None
        folders = choose(storage, step, on_damage)
        return folders, "" if folders else describe_absence(storage, step)

    try:
        # If a rank with a wrong argument raised alone, it would be one load behind the others from
        # then on.
        exchange_or_fail("checkpoint/load", ranks, None, problem, "nothing was loaded")
        assert storage is not None
        progress = progress or line_printer("loading", ranks)
        rank_load = _Load(state_dict, storage, ranks, allow_pickle, strict, progress)
        for _ in range(TRIES):
            folders, absence = collective.broadcast("checkpoint/choose", ranks, choose_folders)
            if not folders:
                raise NoCheckpoint(absence)
            try:
                return rank_load.first_intact(folders)
            except Vanished:
                continue
    except (RanksMissing, StoreLost) as error:
        raise CheckpointError(f"nothing was loaded{origin}: {error}") from error
    raise Vanished(f"the checkpoint in {storage.root} was replaced {TRIES} times during the load")


@dataclass
class _Load:
    """One rank's part in a load. _count: bytes that this rank verifies and reads."""

    _state_dict: StateDict
    _storage: Storage
    _ranks: Ranks
    _allow_pickle: bool
    _strict: bool
    _progress: LoadCallback
    _count: ByteCount = field(default_factory=ByteCount)

    def first_intact(self, folders: Sequence[str]) -> LoadReport:
        """Loads the first of the folders that is intact."""
        refused: list[str] = []
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
        except DamagedFile:
            layout.damaged.add(self._storage.root)
            raise
        self._check_same(folder, prepared)
        run_together("checkpoint/read", self._ranks, lambda: self._fill(folder, prepared), report)
        return LoadReport(
            step=prepared.content.step,
            folder=f"{self._storage.root}/{folder}",
            bytes=prepared.plan.bytes(prepared.content),
            seconds=time.monotonic() - started,
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
            content = _read_manifest(self._storage, folder)
            adapt = partial(optimizer_state.adapt, content)
            expansion = Expansion(self._state_dict, adapt)
            plan = match(expansion, content, self._strict)
            self._count.total = plan.bytes(content)
            # The files that this rank reads, and its share of the others.
            files = plan.files(content)
            rank, world_size = self._ranks.rank, self._ranks.world_size
            files.update(entry.name for entry in content.files[rank::world_size])
            verify_files(self._storage, folder, content, files, self._count)
            if rank == 0:
                for damage in verification.find_foreign_files(self._storage, folder, content):
                    raise damage.error(self._storage.root)
            reader = Reader(self._storage, folder, content)
            reader.check_packs(plan.tensors)
            objects = {name: reader.read_object(name, self._allow_pickle) for name in plan.objects}
            self._count.add(sum(content.objects[name].size for name in objects))
        except (DamagedFile, OSError) as error:
            _raise_if_vanished(self._storage, folder, content, error)
            raise
        return _Prepared(expansion, reader, plan, objects, content)

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
            _raise_if_vanished(self._storage, folder, prepared.content, error)
            raise
        streams.wait_for(devices)
        prepared.expansion.restore(prepared.objects)


def _read_manifest(storage: Storage, folder: str) -> Manifest:
    try:
        return catalog.read_manifest(storage, folder)
    except DamagedFile as error:
        if not copies.heal_manifest(storage, folder):
            raise
        _warn_of_healing(error)
        return catalog.read_manifest(storage, folder)


def _warn_of_healing(error: DamagedFile) -> None:
    text = f"{error}; it was replaced by its other copy"
    warnings.warn(text, CheckpointWarning, stacklevel=2)


def verify_files(
    storage: Storage, folder: str, content: Manifest, names: Collection[str], count: ByteCount
) -> None:
    """Raises the first damage in these files that cannot be healed. count: of what is verified."""
    entries = {entry.name: entry for entry in content.files if entry.name in names}
    chosen = tuple(entries.values())
    count.total += sum(entry.size for entry in chosen)
    errors = []
    for damage in verification.check_files(storage, folder, content, chosen, count.add):
        error = damage.error(storage.root)
        if copies.heal(storage, folder, damage.file, entries[damage.file]):
            _warn_of_healing(error)
        else:
            errors.append(error)
    if errors:
        raise errors[0]


def _raise_if_vanished(
    storage: Storage, folder: str, content: Manifest | None, error: Exception
) -> None:
    """Raises Vanished if the folder is gone or another checkpoint has its name: a pruned step may
    be saved again.
    """
    is_present = folder in storage.folders()
    if not is_present or catalog.manifest_if_intact(storage, folder) != content:
        raise Vanished(f"{folder} was replaced or pruned while it was read") from error
