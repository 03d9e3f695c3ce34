"""Loading a checkpoint into a state dict: rank 0 chooses it, all ranks verify it, and only then is
it read.

The state dict is not changed before every rank has matched it, verified every file and unpickled
the objects. match.py says what a state dict needs, reader.py reads it into memory.
"""

from __future__ import annotations

import operator
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.collective import run_with_heartbeat
from ..comm.store import RanksMissing, StoreLost
from . import catalog, copies, corrupt_files, streams, verification
from .errors import CheckpointError, CheckpointWarning, DamagedFile, NoCheckpoint, Vanished
from .match import compare, match
from .nested import Expansion, merged
from .optimizer_state import adapt_optimizers
from .plan import exchange_or_fail
from .reader import Reader
from .saver import BACKGROUND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .manifest import Manifest, Record
    from .match import LoadPlan

LATEST = "latest"
REFUSE, PREVIOUS = "refuse", "previous"
# Kinds of failures of a rank; the first in this order is what all ranks raise.
ERROR, STORE, VANISHED, DAMAGE = "error", "store", "vanished", "damage"
# How often a load starts again when its checkpoint is overwritten or pruned meanwhile.
TRIES = 100


@dataclass(frozen=True)
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
    refused: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Bytes per second, verification included: bytes / (verify_s + read_s)."""
        seconds = self.verify_s + self.read_s
        return self.bytes / seconds if seconds else 0.0


@dataclass(frozen=True)
class _Prepared:
    """What a rank holds once it may read. values: of the objects, in the plan's order."""

    expansion: Expansion
    reader: Reader
    plan: LoadPlan
    values: tuple[Any, ...]
    content: Manifest
    bytes: int


def load(
    state_dict: dict[str, Any],
    open_backend: Callable[[], Backend],
    step: int | str,
    ranks: Ranks,
    *,
    on_damage: str,
    allow_pickle: bool,
    strict: bool = True,
) -> LoadReport:
    # A background save uses these ranks' exchanges too, and may be the checkpoint to load.
    BACKGROUND.finish()
    backend = _check_arguments(open_backend, step, on_damage, ranks)
    try:
        for _ in range(TRIES):
            folders, refused = _choose_on_rank_0(backend, step, on_damage, ranks)
            if not folders:
                raise NoCheckpoint(
                    collective.broadcast(
                        "checkpoint/nothing", ranks, lambda: _describe_absence(backend, step)
                    )
                )
            try:
                return _load_first_intact(
                    state_dict, backend, folders, refused, ranks, allow_pickle, strict
                )
            except Vanished:
                continue
    except (RanksMissing, StoreLost) as error:
        raise CheckpointError(f"nothing was loaded from {backend.root}: {error}") from error
    raise Vanished(f"the checkpoint in {backend.root} was replaced {TRIES} times during the load")


def _check_arguments(
    open_backend: Callable[[], Backend], step: int | str, on_damage: str, ranks: Ranks
) -> Backend:
    """Opens the backend. Raises on all ranks what is wrong with the arguments of one.

    If that rank alone raised, it would lag the others by one load from then on.
    """
    backend, problem = None, None
    try:
        if on_damage not in (REFUSE, PREVIOUS):
            raise ValueError(f"on_damage={on_damage!r}: pass {REFUSE!r} or {PREVIOUS!r}")
        _step_number(step)
        backend = open_backend()
    except Exception as error:
        problem = error
    place = "" if backend is None else f" from {backend.root}"
    try:
        exchange_or_fail("checkpoint/load", ranks, None, problem, consequence="nothing was loaded")
    except (RanksMissing, StoreLost) as error:
        raise CheckpointError(f"nothing was loaded{place}: {error}") from error
    assert backend is not None
    return backend


# Choosing


def _step_number(step: int | str) -> int | None:
    """None for the latest. Raises ValueError if it is neither a number nor `latest`."""
    if step == LATEST:
        return None
    try:
        return int(step) if isinstance(step, str) else operator.index(step)
    except (TypeError, ValueError):
        raise ValueError(f"step={step!r}: pass the number of a step, or {LATEST!r}") from None


def choose(
    backend: Backend, step: int | str, on_damage: str
) -> tuple[list[str], DamagedFile | None]:
    """The folders to try, in order; and the damage of `latest`, if it was needed to choose.

    With on_damage="previous", the folders that were committed before follow, newest first.
    """
    number = _step_number(step)
    first, damage = None, None
    if number is not None:
        first = catalog.of_step(backend, number)
    else:
        try:
            first = catalog.named(backend)
        except DamagedFile as error:
            damage = error
        if first is None:
            first = next(iter(catalog.newest_first(backend)), None)
    if first is None:
        return [], damage
    folders = [first]
    if on_damage == PREVIOUS:
        for folder in catalog.newest_first(backend):
            folder_step = catalog.step_of(folder)
            is_before = number is None or folder_step is None or folder_step < number
            if folder != first and is_before:
                folders.append(folder)
    return folders, damage


def folder_of(backend: Backend, step: int | str) -> str:
    """The folder of a step.

    Raises NoCheckpoint; DamagedFile if the step is the latest and `latest` is damaged.
    """
    folder, damage = look_up(backend, step)
    if damage:
        raise damage
    return folder


def look_up(backend: Backend, step: int | str) -> tuple[str, DamagedFile | None]:
    """The folder of a step; and the damage of `latest`, if it was needed to choose.

    The folder is then the most likely latest one. Raises NoCheckpoint.
    """
    folders, damage = choose(backend, step, REFUSE)
    if not folders:
        raise NoCheckpoint(_describe_absence(backend, step))
    return folders[0], damage


def _describe_absence(backend: Backend, step: int | str) -> str:
    which = "" if step == LATEST else f" of step {step}"
    steps = [str(name.step) for name in catalog.steps(backend)]
    if not steps:
        present = "it has no committed step"
    elif len(steps) == 1:
        present = f"it has step {steps[0]}"
    else:
        present = f"it has steps {', '.join(steps)}"
    return f"{backend.root} has no checkpoint{which}: {present}"


def _choose_on_rank_0(
    backend: Backend, step: int | str, on_damage: str, ranks: Ranks
) -> tuple[list[str], list[str]]:
    """The folders, and a sentence about the damage of `latest`, if any.

    Raises DamagedFile on every rank unless damage may be skipped.
    """

    def choose_as_json() -> dict[str, Any]:
        folders, damage = choose(backend, step, on_damage)
        return {"folders": folders, "damage": [damage.path, damage.problem] if damage else None}

    choice = collective.broadcast("checkpoint/choose", ranks, choose_as_json)
    folders = choice["folders"]
    if not choice["damage"]:
        return folders, []
    damage = DamagedFile(*choice["damage"])
    if on_damage != PREVIOUS:
        raise damage
    if ranks.rank == 0 and folders:
        warnings.warn(f"{damage}; trying {folders[0]}", CheckpointWarning, stacklevel=4)
    return folders, [str(damage)]


# Loading


def _load_first_intact(
    state_dict: dict[str, Any],
    backend: Backend,
    folders: Sequence[str],
    refused: list[str],
    ranks: Ranks,
    allow_pickle: bool,
    strict: bool,
) -> LoadReport:
    for number, folder in enumerate(folders):
        try:
            return _load_folder(
                state_dict, backend, folder, ranks, tuple(refused), allow_pickle, strict
            )
        except DamagedFile as error:
            # On all ranks, since the next save of any of them may link the file.
            corrupt_files.add(backend.root, error.path.rpartition("/")[2])
            if number + 1 == len(folders):
                raise
            refused.append(str(error))
            if ranks.rank == 0:
                text = f"{error}; trying {folders[number + 1]}"
                warnings.warn(text, CheckpointWarning, stacklevel=4)
    raise AssertionError("there is at least one folder")


def _load_folder(
    state_dict: dict[str, Any],
    backend: Backend,
    folder: str,
    ranks: Ranks,
    refused: tuple[str, ...],
    allow_pickle: bool,
    strict: bool,
) -> LoadReport:
    started = time.monotonic()
    prepared: _Prepared = _run_together(
        "checkpoint/verify",
        ranks,
        lambda: _prepare(state_dict, backend, folder, ranks, allow_pickle, strict),
    )
    unused = prepared.plan.unused if strict else []
    seen = ranks.exchange("checkpoint/same", [prepared.content.digest, unused])
    if len({digest for digest, _ in seen}) > 1:
        raise Vanished(
            f"{folder} was replaced while it was read: the ranks do not see the same checkpoint"
        )
    _check_use({name for _, names in seen for name in names}, prepared.plan, ranks)
    verified = time.monotonic()
    _run_together("checkpoint/read", ranks, lambda: _fill(backend, folder, prepared))
    return LoadReport(
        step=prepared.content.step,
        folder=f"{backend.root}/{folder}",
        bytes=prepared.bytes,
        verify_s=verified - started,
        read_s=time.monotonic() - verified,
        refused=refused,
        missing=prepared.plan.missing,
        unexpected=prepared.plan.unexpected,
    )


def _prepare(
    state_dict: dict[str, Any],
    backend: Backend,
    folder: str,
    ranks: Ranks,
    allow_pickle: bool,
    strict: bool,
) -> _Prepared:
    """Plans this rank's reads, verifies their files and its share of the others, and unpickles the
    objects.
    """
    content = None
    try:
        content = _read_manifest(backend, folder)
        expansion = Expansion(state_dict)
        adapt_optimizers(expansion, content)
        plan = match(expansion, content, strict)
        records = [read.record for read in plan.tensors]
        records += [content.objects[leaf.name] for leaf in plan.objects]
        _verify_share(backend, folder, content, records, ranks)
        reader = Reader(backend, folder, content)
        reader.check_tensors(plan.tensors)
        values = tuple(reader.read_object(leaf.name, allow_pickle) for leaf in plan.objects)
        plan = compare(plan, values, strict)
    except (DamagedFile, OSError) as error:
        _raise_if_vanished(backend, folder, content, error)
        raise
    size = sum(record.size for record in records)
    return _Prepared(expansion, reader, plan, values, content, size)


def _check_use(unused: set[str], plan: LoadPlan, ranks: Ranks) -> None:
    """Raises CheckpointError, on all ranks, unless each of the names that some have no place for is
    another rank's: of a model that is cut into parts, each has its own names.
    """
    if not unused:
        return
    own_names = {read.name for read in plan.tensors} | {leaf.name for leaf in plan.objects}
    for names in ranks.exchange("checkpoint/use", sorted(unused & own_names)):
        unused = unused.difference(names)
    if unused:
        raise CheckpointError(
            f"what is here has no place for {', '.join(sorted(unused))} of the checkpoint: "
            "pass strict=False to leave that out"
        )


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


def _verify_share(
    backend: Backend, folder: str, content: Manifest, records: Sequence[Record], ranks: Ranks
) -> None:
    """Raises the first damage in the files that this rank reads, or in its share of all files, and
    that cannot be healed.
    """
    own_names = {record.file for record in records}
    entries = []
    for number, entry in enumerate(content.files):
        if entry.name in own_names or number % ranks.world_size == ranks.rank:
            entries.append(entry)
    damages = []
    if ranks.rank == 0:
        damages += verification.find_foreign_files(backend, folder, content)
    by_name = {entry.name: entry for entry in entries}
    for damage in verification.check_files(backend, folder, content, entries, quick=True):
        if copies.heal(backend, damage.folder, damage.file, by_name[damage.file]):
            _warn_of_healing(damage.error(backend.root))
        else:
            damages.append(damage)
    if damages:
        raise damages[0].error(backend.root)


def _fill(backend: Backend, folder: str, prepared: _Prepared) -> None:
    reads = prepared.plan.tensors
    objects = prepared.plan.objects
    devices = streams.devices_of(read.target() for read in reads)
    devices |= streams.devices_of(streams.tensors_in([leaf.value for leaf in objects]))
    streams.wait_for(devices)  # earlier work could still overwrite what is read
    try:
        prepared.reader.read_tensors(reads)
    except OSError as error:
        _raise_if_vanished(backend, folder, prepared.content, error)
        raise
    for leaf, value in zip(objects, prepared.values):
        leaf.container[leaf.key] = merged(leaf.value, value)
    streams.wait_for(devices)
    prepared.expansion.restore()


def _raise_if_vanished(
    backend: Backend, folder: str, content: Manifest | None, error: Exception
) -> None:
    """Raises Vanished if the folder is gone or another checkpoint has its name: a pruned step may
    be saved again.
    """
    is_present = folder in backend.folders()
    if not is_present or catalog.manifest_if_intact(backend, folder) != content:
        raise Vanished(f"{folder} was replaced or pruned while it was read") from error


# Failures


def _run_together(name: str, ranks: Ranks, action: Callable[[], Any]) -> Any:
    """This rank's result, once all ranks have theirs.

    A failure on one is raised on all; damage as the same damage.
    """
    result, error = None, None
    try:
        result = run_with_heartbeat(f"{name}/busy", ranks, action).result()
    except (RanksMissing, StoreLost):
        raise
    except Exception as failure:  # whatever it is, the other ranks wait for an answer
        error = failure
    failures = ranks.exchange(name, None if error is None else _as_json(error))
    for kind in (ERROR, STORE, VANISHED, DAMAGE):
        failed = []
        for rank, failure_of_rank in enumerate(failures):
            if failure_of_rank is not None and failure_of_rank["kind"] == kind:
                failed.append(rank)
        if not failed:
            continue
        # Of several ranks with damage, all raise the first one's; of other failures, each its own.
        raises_own = ranks.rank == failed[0] or (kind != DAMAGE and ranks.rank in failed)
        if error is not None and raises_own:
            raise error
        raise _from_json(failed, failures[failed[0]])
    return result


def _as_json(error: Exception) -> dict[str, Any]:
    if isinstance(error, DamagedFile):
        return {"kind": DAMAGE, "damage": [error.path, error.problem, list(error.tensors)]}
    if isinstance(error, Vanished):
        return {"kind": VANISHED, "text": str(error)}
    if isinstance(error, OSError):
        path = None if error.filename is None else str(error.filename)
        return {"kind": STORE, "error": [error.errno or 0, error.strerror or str(error), path]}
    text = str(error)
    if not isinstance(error, CheckpointError):
        text = f"{type(error).__name__}: {error}"
    return {"kind": ERROR, "text": text}


def _from_json(failed: list[int], failure: dict[str, Any]) -> Exception:
    """The error of other ranks."""
    if failure["kind"] == DAMAGE:
        path, problem, tensors = failure["damage"]
        return DamagedFile(path, problem, tuple(tensors))
    if failure["kind"] == STORE:
        return collective.RankFailed(failed, *failure["error"])
    text = f"rank {failed[0]}: {failure['text']}"
    if failure["kind"] == VANISHED:
        return Vanished(text)
    return CheckpointError(text)
