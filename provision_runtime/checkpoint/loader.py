"""Loading a checkpoint into a state dict: chosen once for all ranks, verified by all, and only then read.

The state dict is not touched before every rank has matched it, verified every file and made the objects. What it needs is
matching.py's, how that comes into memory reading.py's.
"""

from __future__ import annotations

import operator
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.heartbeat import run_with_heartbeat
from ..comm.store import RanksMissing, StoreLost
from . import (
    assigning,
    catalog,
    corrupt_files,
    layout,
    manifest,
    match,
    saver,
    streams,
    verification,
)
from .plan import expand, is_stateful
from .reader import Reader
from .saver import BACKGROUND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .manifest import Manifest
    from .match import Wanted

LATEST = "latest"
REFUSE, PREVIOUS = "refuse", "previous"
ERROR, STORE, VANISHED, DAMAGE = "error", "store", "vanished", "damage"
# How often a checkpoint that is overwritten or pruned while it is read is looked for again.
TRIES = 100


class NoCheckpoint(manifest.CheckpointError):
    """Nothing of that kind was committed."""


class Vanished(manifest.CheckpointError):
    """The checkpoint was overwritten or pruned while it was read."""


@dataclass(frozen=True)
class LoadReport:
    """What was loaded. bytes: what this rank read into the state dict. refused: what is wrong with the newer checkpoints that were
    passed over (`on_damage="previous"`), or with `latest`, in words."""

    step: int
    folder: str
    bytes: int
    verify_s: float
    read_s: float
    refused: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Bytes per second, verification included."""
        return self.bytes / (self.verify_s + self.read_s) if self.verify_s + self.read_s else 0.0


@dataclass(frozen=True)
class Ready:
    """All that a rank knows once nothing stands against reading any more. values: of the objects, in the order of `wanted`."""

    expanded: dict[str, Any]
    reader: Reader
    wanted: Wanted
    values: tuple[Any, ...]
    content: Manifest
    bytes: int


def load(
    state_dict: dict[str, Any],
    opened: Callable[[], Backend],
    step: int | str,
    ranks: Ranks,
    *,
    on_damage: str,
    allow_pickle: bool,
) -> LoadReport:
    BACKGROUND.finish()  # its meetings are these ranks' too; and what it saves is then there
    backend = _agreed(opened, step, on_damage, ranks)
    try:
        for _ in range(TRIES):
            folders, refused = _chosen_by_rank_0(backend, step, on_damage, ranks)
            if not folders:
                raise NoCheckpoint(
                    collective.broadcast(
                        "checkpoint/nothing", ranks, lambda: _nothing(backend, step)
                    )
                )
            try:
                return _load_first_whole(state_dict, backend, folders, refused, ranks, allow_pickle)
            except Vanished:
                continue
    except (RanksMissing, StoreLost) as error:
        raise manifest.CheckpointError(
            f"nothing was loaded from {backend.root}: {error}"
        ) from error
    raise Vanished(f"the checkpoint in {backend.root} was replaced {TRIES} times while it was read")


def _agreed(
    opened: Callable[[], Backend], step: int | str, on_damage: str, ranks: Ranks
) -> Backend:
    """What is wrong with what one rank was given is told to all: were it raised there alone, it would be one load behind from then on."""
    backend, problem = None, None
    try:
        if on_damage not in (REFUSE, PREVIOUS):
            raise ValueError(f"on_damage={on_damage!r}: it is {REFUSE!r} or {PREVIOUS!r}")
        _number(step)
        backend = opened()
    except Exception as error:
        problem = error
    place = "" if backend is None else f" from {backend.root}"
    try:
        assigning.meet("checkpoint/load", ranks, None, problem, lost="nothing was loaded")
    except (RanksMissing, StoreLost) as missed:
        raise manifest.CheckpointError(f"nothing was loaded{place}: {missed}") from missed
    assert backend is not None
    return backend


def choose(
    backend: Backend, step: int | str, on_damage: str
) -> tuple[list[str], manifest.DamagedFile | None]:
    """The folder that is asked for, and after it, with `previous`, those committed before it, newest first; and what is wrong with
    `latest`, where that was to say which it is."""
    first, damage, number = None, None, _number(step)
    if number is None:
        try:
            first = catalog.named(backend)
        except manifest.DamagedFile as error:
            damage = error
        first = first or next(iter(catalog.newest_first(backend)), None)
    else:
        first = catalog.of_step(backend, number)
    if first is None or on_damage != PREVIOUS:
        return [first] if first else [], damage
    others = [folder for folder in catalog.newest_first(backend) if folder != first]
    return [
        first,
        *(folder for folder in others if number is None or _step(folder) < number),
    ], damage


def _number(step: int | str) -> int | None:
    """Of a step that is asked for; None of the latest. Raises ValueError where it is neither."""
    if step == LATEST:
        return None
    try:
        return int(step) if isinstance(step, str) else operator.index(step)
    except (TypeError, ValueError):
        raise ValueError(f"step={step!r}: it is the number of a step, or {LATEST!r}") from None


def chosen(backend: Backend, step: int | str) -> str:
    """The folder of a step. Raises NoCheckpoint, and DamagedFile where it is the latest that is asked for, and `latest` is damaged."""
    folder, damage = looked_up(backend, step)
    if damage:
        raise damage
    return folder


def looked_up(backend: Backend, step: int | str) -> tuple[str, manifest.DamagedFile | None]:
    """The folder of a step; of the latest, the one that seems to be it, and what is wrong with `latest`. Raises NoCheckpoint."""
    folders, damage = choose(backend, step, REFUSE)
    if not folders:
        raise NoCheckpoint(_nothing(backend, step))
    return folders[0], damage


def _chosen_by_rank_0(
    backend: Backend, step: int | str, on_damage: str, ranks: Ranks
) -> tuple[list[str], list[str]]:
    """The folders, and what is wrong with `latest`, in words. Raises DamagedFile on every rank where that is not to be passed over."""

    def said() -> dict[str, Any]:
        folders, damage = choose(backend, step, on_damage)
        return {"folders": folders, "damage": [damage.path, damage.problem] if damage else None}

    found = collective.broadcast("checkpoint/choose", ranks, said)
    if not found["damage"]:
        return found["folders"], []
    damage = manifest.DamagedFile(*found["damage"])
    if on_damage != PREVIOUS:
        raise damage
    if ranks.rank == 0 and found["folders"]:
        warnings.warn(f"{damage}; trying {found['folders'][0]}", stacklevel=4)
    return found["folders"], [str(damage)]


def _load_first_whole(
    state_dict: dict[str, Any],
    backend: Backend,
    folders: Sequence[str],
    refused: list[str],
    ranks: Ranks,
    allow_pickle: bool,
) -> LoadReport:
    for place, folder in enumerate(folders):
        try:
            return _load_one(state_dict, backend, folder, ranks, tuple(refused), allow_pickle)
        except manifest.DamagedFile as error:
            corrupt_files.add(
                backend.root, error.path.rpartition("/")[2]
            )  # on all ranks: any of them may be about to link it
            if place + 1 == len(folders):
                raise
            refused.append(str(error))
            if ranks.rank == 0:
                warnings.warn(f"{error}; trying {folders[place + 1]}", stacklevel=4)
    raise AssertionError("there is at least one folder")


def _load_one(
    state_dict: dict[str, Any],
    backend: Backend,
    folder: str,
    ranks: Ranks,
    refused: tuple[str, ...],
    allow_pickle: bool,
) -> LoadReport:
    started = time.monotonic()
    ready = _together(
        "checkpoint/verify",
        ranks,
        lambda: _prepare(state_dict, backend, folder, ranks, allow_pickle),
    )
    if len(set(ranks.exchange("checkpoint/same", ready.content.digest))) > 1:
        raise Vanished(
            f"{folder} was replaced while it was read: the ranks do not see the same checkpoint"
        )
    verified = time.monotonic()
    _together("checkpoint/read", ranks, lambda: _fill(state_dict, backend, folder, ready))
    read_s = time.monotonic() - verified
    return LoadReport(
        ready.content.step,
        f"{backend.root}/{folder}",
        ready.bytes,
        verified - started,
        read_s,
        refused,
    )


def _together(name: str, ranks: Ranks, action: Callable[[], Any]) -> Any:
    """This rank's result, once all ranks have theirs; what failed on one is raised on all, and damage as the same damage."""
    result, error = None, None
    try:
        result = run_with_heartbeat(f"{name}/busy", ranks, action).result()
    except (RanksMissing, StoreLost):
        raise
    except Exception as failure:  # whatever it is, the others wait for word of it
        error = failure
    own = None if error is None else _said(error)
    everyones = ranks.exchange(name, own)
    for kind in (ERROR, STORE, VANISHED, DAMAGE):
        failed = [
            rank for rank, what in enumerate(everyones) if what is not None and what["kind"] == kind
        ]
        if failed:
            is_ours = error is not None and (
                ranks.rank == failed[0] or (kind != DAMAGE and ranks.rank in failed)
            )
            raise (
                error if is_ours and error is not None else _of_others(failed, everyones[failed[0]])
            )
    return result


def _said(error: Exception) -> dict[str, Any]:
    if isinstance(error, manifest.DamagedFile):
        return {"kind": DAMAGE, "said": [error.path, error.problem, list(error.tensors)]}
    if isinstance(error, Vanished):
        return {"kind": VANISHED, "said": str(error)}
    if isinstance(error, OSError):
        path = None if error.filename is None else str(error.filename)
        return {"kind": STORE, "said": [error.errno or 0, error.strerror or str(error), path]}
    name = "" if isinstance(error, manifest.CheckpointError) else f"{type(error).__name__}: "
    return {"kind": ERROR, "said": f"{name}{error}"}


def _of_others(failed: list[int], what: dict[str, Any]) -> Exception:
    kind, said = what["kind"], what["said"]
    if kind == DAMAGE:
        return manifest.DamagedFile(said[0], said[1], tuple(said[2]))
    if kind == STORE:
        return collective.RankFailed(failed, *said)
    return (Vanished if kind == VANISHED else manifest.CheckpointError)(f"rank {failed[0]}: {said}")


def _prepare(
    state_dict: dict[str, Any], backend: Backend, folder: str, ranks: Ranks, allow_pickle: bool
) -> Ready:
    """The plan of this rank, with all that it reads verified, and its share of what nobody reads; the objects, made."""
    content = None
    try:
        content = catalog.read_manifest(backend, folder)
        expanded = expand(state_dict)
        wanted = match.match(expanded, content)
        _refuse_damage(backend, folder, content, wanted, ranks)
        reader = Reader(backend, folder, content)
        values = tuple(reader.object(leaf.name, allow_pickle) for leaf in wanted.objects)
    except (manifest.DamagedFile, OSError) as error:
        _raise_if_vanished(backend, folder, content, error)
        raise
    size = sum(record.size for record in _records(wanted, content))
    return Ready(expanded, reader, wanted, values, content, size)


def _refuse_damage(
    backend: Backend, folder: str, content: Manifest, wanted: Wanted, ranks: Ranks
) -> None:
    own = {record.file for record in _records(wanted, content)}
    entries = [
        entry
        for place, entry in enumerate(content.files)
        if entry.name in own or place % ranks.world_size == ranks.rank
    ]
    problems = verification.strangers(backend, folder, content) if ranks.rank == 0 else []
    problems += verification.check(backend, folder, content, entries, quickly=True)
    if problems:
        raise problems[0].error(backend.root)


def _records(wanted: Wanted, content: Manifest) -> list[manifest.Record]:
    return [read.record for read in wanted.tensors] + [
        content.objects[leaf.name] for leaf in wanted.objects
    ]


def _fill(state_dict: dict[str, Any], backend: Backend, folder: str, ready: Ready) -> None:
    saver.RECALL.forget()
    devices = streams.of(read.target() for read in ready.wanted.tensors)
    streams.wait_for(devices)  # what was launched before would overwrite what is read
    try:
        ready.reader.tensors(ready.wanted.tensors)
        streams.wait_for(devices)
    except OSError as error:
        _raise_if_vanished(backend, folder, ready.content, error)
        raise
    for leaf, value in zip(ready.wanted.objects, ready.values):
        leaf.container[leaf.key] = value
    for key, value in state_dict.items():
        if is_stateful(value):
            value.load_state_dict(ready.expanded[key])
        else:
            state_dict[key] = ready.expanded[key]


def _raise_if_vanished(
    backend: Backend, folder: str, read: Manifest | None, error: Exception
) -> None:
    """Also where the name is another checkpoint's by now: a step that was pruned may be saved again under it."""
    if folder not in backend.folders() or catalog.manifest_if_whole(backend, folder) != read:
        raise Vanished(f"{folder} was replaced or pruned while it was read") from error


def _step(folder: str) -> int:
    name = layout.parse(folder)
    return name.step if name else -1


def _nothing(backend: Backend, step: int | str) -> str:
    there = [str(name.step) for name in catalog.steps(backend)]
    held = (
        f"it has {'step' if len(there) == 1 else 'steps'} {', '.join(there)}"
        if there
        else "nothing was committed there"
    )
    return f"{backend.root} has no checkpoint{'' if step == LATEST else f' of step {step}'}: {held}"
