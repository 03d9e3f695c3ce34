"""Reading a checkpoint into a state dict: chosen once for all ranks, verified by all, and only then read.

The state dict is not touched before every file was verified. Resharding is torch's own planner's; plain tensors need none.
"""

from __future__ import annotations

import io
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from .. import fs
from . import dcp, finding, layout, manifest, verifying
from .planning import is_stateful, walk
from .serializing import memory_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ..ranks import Ranks
    from .backends import Backend
    from .manifest import Manifest, Record

LATEST = "latest"
REFUSE, PREVIOUS = "refuse", "previous"
ERROR, VANISHED, DAMAGE = "error", "vanished", "damage"
WORKERS = 3
# How often a checkpoint that is overwritten or pruned while it is read is looked for again.
TRIES = 100


class NoCheckpoint(manifest.CheckpointError):
    """Nothing of that kind was committed."""


class Vanished(manifest.CheckpointError):
    """The checkpoint was overwritten or pruned while it was read."""


@dataclass(frozen=True)
class LoadReport:
    """What was loaded. bytes: what this rank read into the state dict. refused: what is wrong with the newer checkpoints that were
    passed over (`on_damage="previous"`), in words."""

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
class Read:
    """One record that this rank needs. target: where its box goes, None for an object, for which `take` is called."""

    name: str
    record: Record
    begin: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    target: Callable[[], torch.Tensor] | None = None
    take: Callable[[io.BytesIO], None] | None = None


def load(state_dict: dict[str, Any], backend: Backend, step: int | str, ranks: Ranks, *, on_damage: str, allow_pickle: bool) -> LoadReport:
    refused: list[str] = []
    for _ in range(TRIES):
        chosen = fs.decide("checkpoint/choose", ranks, lambda: choose(backend, step, on_damage))
        if not chosen:
            raise NoCheckpoint(_nothing(backend, step))
        try:
            return _load_first_whole(state_dict, backend, chosen, ranks, refused, allow_pickle)
        except Vanished:
            refused.clear()
    raise Vanished(f"the checkpoint in {backend.root} was replaced {TRIES} times while it was read")


def choose(backend: Backend, step: int | str, on_damage: str) -> list[str]:
    """The folder that is asked for, and after it, with `previous`, those committed before it, newest first."""
    if step == LATEST:
        first = finding.latest(backend)
    else:
        first = next((str(name) for name in finding.steps(backend) if name.step == step), None)
    if first is None or on_damage != PREVIOUS:
        return [first] if first else []
    others = [folder for folder in finding.by_age(backend) if folder != first]
    return [first, *(folder for folder in others if step == LATEST or _step(folder) < int(step))]


def chosen(backend: Backend, step: int | str) -> str:
    """The folder of a step. Raises NoCheckpoint."""
    folders = choose(backend, step, REFUSE)
    if not folders:
        raise NoCheckpoint(_nothing(backend, step))
    return folders[0]


def _load_first_whole(
    state_dict: dict[str, Any], backend: Backend, folders: Sequence[str], ranks: Ranks, refused: list[str], allow_pickle: bool
) -> LoadReport:
    for place, folder in enumerate(folders):
        try:
            return _load_one(state_dict, backend, folder, ranks, tuple(refused), allow_pickle)
        except manifest.DamagedFile as error:
            if place + 1 == len(folders):
                raise
            refused.append(str(error))
            warnings.warn(f"{error}; trying {folders[place + 1]}", stacklevel=2)
    raise AssertionError("there is at least one folder")


def _load_one(
    state_dict: dict[str, Any], backend: Backend, folder: str, ranks: Ranks, refused: tuple[str, ...], allow_pickle: bool
) -> LoadReport:
    started = time.monotonic()
    expanded = {key: value.state_dict() if is_stateful(value) else value for key, value in state_dict.items()}
    content, reads = _together("checkpoint/verify", ranks, lambda: _prepare(expanded, backend, folder, ranks))
    verified = time.monotonic()
    _together("checkpoint/read", ranks, lambda: _Reader(backend, folder, content, allow_pickle).run(reads))
    for key, value in state_dict.items():
        if is_stateful(value):
            value.load_state_dict(expanded[key])
        else:
            state_dict[key] = expanded[key]
    size = sum(read.record.size for read in reads)
    return LoadReport(content.step, f"{backend.root}/{folder}", size, verified - started, time.monotonic() - verified, refused)


def _together(name: str, ranks: Ranks, action: Callable[[], Any]) -> Any:
    """This rank's result, once all ranks have theirs; what failed on one is raised on all, damage as damage."""
    result, error = None, None
    try:
        result = action()
    except Exception as failure:  # whatever it is, the others wait for word of it
        error = failure
    own = None if error is None else _said(error)
    everyones = ranks.exchange(name, own)
    for kind in (ERROR, VANISHED, DAMAGE):
        for rank, what in enumerate(everyones):
            if what is not None and what["kind"] == kind:
                raise (error if error is not None and own is not None and own["kind"] == kind else _of_another(rank, what))
    return result


def _said(error: Exception) -> dict[str, Any]:
    if isinstance(error, manifest.DamagedFile):
        return {"kind": DAMAGE, "said": [error.path, error.problem, list(error.tensors)]}
    if isinstance(error, Vanished):
        return {"kind": VANISHED, "said": str(error)}
    return {"kind": ERROR, "said": f"{type(error).__name__}: {error}"}


def _of_another(rank: int, what: dict[str, Any]) -> Exception:
    if what["kind"] == DAMAGE:
        path, problem, tensors = what["said"]
        return manifest.DamagedFile(path, problem, tuple(tensors))
    return (Vanished if what["kind"] == VANISHED else manifest.CheckpointError)(f"rank {rank}: {what['said']}")


def _prepare(state_dict: dict[str, Any], backend: Backend, folder: str, ranks: Ranks) -> tuple[Manifest, list[Read]]:
    """The plan of this rank, with all that it reads verified; and its share of what nobody reads."""
    try:
        content = finding.read_manifest(backend, folder)
        reads = list(plan_load(state_dict, content))
        own = {read.record.file for read in reads}
        entries = [entry for place, entry in enumerate(content.files) if entry.name in own or place % ranks.world_size == ranks.rank]
        problems = verifying.strangers(backend, folder, content) if ranks.rank == 0 else []
        problems += verifying.check(backend, folder, content, entries)
    except (manifest.DamagedFile, OSError) as error:
        _raise_if_vanished(backend, folder, error)
        raise
    if problems:
        damage = problems[0].error(backend.root)
        _raise_if_vanished(backend, folder, damage)
        raise damage
    return content, reads


def _raise_if_vanished(backend: Backend, folder: str, error: Exception) -> None:
    if folder not in backend.folders():
        raise Vanished(f"{folder} was replaced or pruned while it was read") from error


def plan_load(state_dict: dict[str, Any], content: Manifest) -> Iterator[Read]:
    """What this rank needs. Raises CheckpointError where a name is not in the checkpoint, or a tensor has another shape there."""
    planned = _planned_by_torch(state_dict, content)
    return iter(planned) if planned is not None else _planned_plainly(state_dict, content)


def _planned_by_torch(state_dict: dict[str, Any], content: Manifest) -> list[Read] | None:
    described = dcp.metadata(content)
    if described is None:
        return None
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.planner import LoadItemType

    planner = DefaultLoadPlanner()
    planner.set_up_planner(state_dict, described, is_coordinator=True)
    try:
        plan = planner.create_local_plan()
    except (KeyError, RuntimeError, ValueError) as error:
        _refuse_mismatch(planner.state_dict, content)
        raise manifest.CheckpointError(f"the state dict does not fit the checkpoint: {error}") from error
    _refuse_mismatch(planner.state_dict, content)
    boxes = {(name, record.offsets): record for name, tensor in content.tensors.items() for record in tensor.records}
    reads = []
    for item in plan.items:
        name = item.storage_index.fqn
        if item.type == LoadItemType.BYTE_IO:
            reads.append(Read(name, content.objects[name], take=partial(planner.load_bytes, item)))
        else:
            record = boxes[name, tuple(item.storage_index.offset)]
            target = partial(planner.resolve_tensor, item)
            reads.append(Read(name, record, tuple(item.storage_offsets), tuple(item.lengths), target))
    return reads


def _refuse_mismatch(flat: dict[str, Any], content: Manifest) -> None:
    """All names that do not fit, at once."""
    missing = [name for name in flat if name not in content.tensors and name not in content.objects]
    shapes = [
        f"{name} is {list(value.shape)} here and {list(content.tensors[name].shape)} in the checkpoint"
        for name, value in flat.items()
        if name in content.tensors and tuple(getattr(value, "shape", content.tensors[name].shape)) != content.tensors[name].shape
    ]
    problems = ([f"the checkpoint of step {content.step} has no {', '.join(missing)}"] if missing else []) + shapes
    if problems:
        raise manifest.CheckpointError("; ".join(problems))


def _planned_plainly(state_dict: dict[str, Any], content: Manifest) -> Iterator[Read]:
    import torch

    leaves = [(".".join(map(str, path)), path, value) for path, value in walk(state_dict)]
    _refuse_mismatch({name: value for name, _, value in leaves}, content)
    for name, path, value in leaves:
        if not isinstance(value, torch.Tensor):
            yield Read(name, content.objects[name], take=partial(_take, state_dict, path))
            continue
        for record in content.tensors[name].records:
            target = partial(narrow, value, record.offsets, record.sizes)
            yield Read(name, record, (0,) * len(record.sizes), record.sizes, target)


def _take(state_dict: dict[str, Any], path: tuple[Any, ...], content: io.BytesIO) -> None:
    import torch

    for key in path[:-1]:
        state_dict = state_dict[key]
    state_dict[path[-1]] = torch.load(content)


def narrow(tensor: torch.Tensor, begin: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    for axis, (start, length) in enumerate(zip(begin, lengths)):
        tensor = tensor.narrow(axis, start, length)
    return tensor


class _Reader:
    def __init__(self, backend: Backend, folder: str, content: Manifest, allow_pickle: bool) -> None:
        self._backend = backend
        self._folder = folder
        self._content = content
        self._homes = {entry.name: entry.home or folder for entry in content.files}
        self._allow_pickle = allow_pickle

    def run(self, reads: Sequence[Read]) -> None:
        try:
            with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-load") as pool:
                for _ in pool.map(self._tensor, [read for read in reads if read.target is not None]):
                    pass
            for read in reads:
                if read.take is not None:
                    self._object(read, read.take)
        except OSError as error:
            _raise_if_vanished(self._backend, self._folder, error)
            raise

    def _tensor(self, read: Read) -> None:
        import torch

        assert read.target is not None
        with torch.no_grad():
            target, record = read.target().detach(), read.record
            if not target.numel():
                return
            dtype = dcp.dtype_of(self._content.tensors[read.name].dtype)
            is_whole = read.lengths == record.sizes
            if is_whole and record.data is not None and _is_plain(target, dtype):
                self._fill(memory_of(target), record, record.data)
                return
            held = self._box(record, dtype)
            target.copy_(held if is_whole else narrow(held, read.begin, read.lengths))

    def _box(self, record: Record, dtype: torch.dtype) -> torch.Tensor:
        import torch

        if record.data is None:
            loaded: torch.Tensor = torch.load(io.BytesIO(self._bytes(record)), map_location="cpu", weights_only=True)
            return loaded
        box = torch.empty(record.sizes, dtype=dtype)
        self._fill(memory_of(box), record, record.data)
        return box

    def _object(self, read: Read, take: Callable[[io.BytesIO], None]) -> None:
        import pickle

        import torch

        content = self._bytes(read.record)
        if not self._allow_pickle:
            try:
                torch.load(io.BytesIO(content), weights_only=True)
            except pickle.UnpicklingError as error:
                advice = "pass allow_pickle=True if you trust whoever wrote it"
                raise manifest.CheckpointError(
                    f"{read.name} is an object that only unpickling makes, which can run code: {advice}"
                ) from error
        take(io.BytesIO(content))

    def _bytes(self, record: Record) -> bytes:
        content = bytearray(record.size)
        self._fill(memoryview(content), record, record.at)
        return bytes(content)

    def _fill(self, memory: memoryview, record: Record, offset: int) -> None:
        folder = self._homes[record.file]
        if self._backend.read_into(folder, record.file, offset, memory) != len(memory):
            raise manifest.DamagedFile(f"{self._backend.root}/{folder}/{record.file}", "it became shorter while it was read")


def _is_plain(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether bytes may be read straight into its memory."""
    return target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous() and not target.is_conj()


def _step(folder: str) -> int:
    name = layout.parse(folder)
    return name.step if name else -1


def _nothing(backend: Backend, step: int | str) -> str:
    there = [str(name.step) for name in finding.steps(backend)]
    held = f"it has {'step' if len(there) == 1 else 'steps'} {', '.join(there)}" if there else "nothing was committed there"
    return f"{backend.root} has no checkpoint{'' if step == LATEST else f' of step {step}'}: {held}"
