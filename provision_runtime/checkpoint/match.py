"""Which records of a checkpoint a state dict needs, and where each of them goes.

Everything that does not fit is reported at once. Names are matched here and not by torch, whose
releases name nested dicts differently: up to 2.3 a dict without tensors is one object, later its
values are. Both are accepted, in the state dict and in the checkpoint. torch's own planner works
out how boxes overlap; plain tensors do not need it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from . import dcp, streams, wrappers
from .errors import CheckpointError
from .items import Names
from .nested import entries, hidden_state, holds_tensors, is_distributed, name_of, values
from .serialize import has_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from .items import Shape
    from .manifest import Manifest, Record
    from .nested import Expansion


ONE_OBJECT = (
    "{} is one object in the checkpoint, which cannot fill the value here: load it with None "
    "instead of the value, and take the values from it"
)


@dataclass(frozen=True)
class Leaf:
    """A value of the state dict that the checkpoint fills: `container[key]`."""

    name: str
    container: Any
    key: Any
    value: Any


@dataclass(frozen=True)
class RecordRead:
    """A part of a record that this rank needs.

    `lengths` elements from `begin` on, within the record's box, go to the tensor that `target`
    returns.
    """

    name: str
    record: Record
    begin: Shape
    lengths: Shape
    target: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class LoadPlan:
    """missing: names that the checkpoint lacks, and whose values stay (strict=False).

    unexpected: names of the checkpoint for which the state dict has no value. wholes: the names of
    what must take all that the checkpoint has for it.
    """

    tensors: tuple[RecordRead, ...]
    objects: tuple[Leaf, ...]
    missing: Names = ()
    unexpected: Names = ()
    wholes: frozenset[str] = frozenset()

    @property
    def unused(self) -> list[str]:
        """The unexpected names without which a live object, or a list, would not be what was
        saved.
        """
        return [name for name in self.unexpected if self.wholes.intersection(_prefixes(name))]


def match(expansion: Expansion, content: Manifest, strict: bool = True) -> LoadPlan:
    """What this rank reads.

    Raises CheckpointError with every name that does not fit, or that the checkpoint lacks; if not
    strict, the latter stay as they are.
    """
    present = {*content.tensors, *content.objects}
    search = _LeafSearch(expansion, content)
    leaves = list(search.leaves(expansion.tree, ()))
    missing = []
    for leaf in leaves:
        if leaf.name not in present:
            missing += [name_of(inner) for inner, _ in values(leaf.value, (leaf.name,))]
    problems = search.problems
    if missing and strict:
        problems.append(f"the checkpoint of step {content.step} has no {', '.join(missing)}")
        problems += wrappers.describe_prefixes(missing, present - {leaf.name for leaf in leaves})
    problems += _misfits(leaves, content)
    if problems:
        raise CheckpointError("; ".join(problems))
    leaves = [leaf for leaf in leaves if leaf.name in present]
    unexpected = sorted(present - {leaf.name for leaf in leaves})
    tensors = {leaf.name: leaf.value for leaf in leaves if leaf.name in content.tensors}
    objects = tuple(leaf for leaf in leaves if leaf.name in content.objects)
    reads = None
    if any(is_distributed(tensor) for tensor in tensors.values()):
        reads = _plan_by_torch(tensors, content)
    if reads is None:
        reads = []
        for name, tensor in tensors.items():
            for record in content.tensors[name].records:
                begin = (0,) * len(record.sizes)
                target = partial(narrow, tensor, record.offsets, record.sizes)
                reads.append(RecordRead(name, record, begin, record.sizes, target))
    wholes = frozenset(search.wholes)
    return LoadPlan(tuple(reads), objects, tuple(missing), tuple(unexpected), wholes)


def _prefixes(name: str) -> list[str]:
    """The name and those of all containers that it may lie in."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


class _LeafSearch:
    """The values to fill: tensors, other values, and containers that the checkpoint holds as one
    object.

    wholes: live objects, lists, and dicts that are empty here. problems: what cannot be filled.
    """

    def __init__(self, expansion: Expansion, content: Manifest) -> None:
        self.problems: list[str] = []
        self._copies = expansion.copies
        self._content = content
        self.wholes = {name_of(path) for path, _, _ in expansion.objects}
        # The names of containers in the checkpoint.
        self._inner_names = set()
        for name in (*content.tensors, *content.objects):
            self._inner_names.update(_prefixes(name)[:-1])

    def leaves(self, container: Any, path: tuple[Any, ...]) -> Iterator[Leaf]:
        """Raises CheckpointError if an optimizer would come back without its state: before its
        first step it has none, so nothing would be read.
        """
        if isinstance(container, MutableMapping):
            is_new_optimizer = "param_groups" in container and container.get("state") == {}
            if is_new_optimizer and name_of((*path, "state")) in self._inner_names:
                name = f" {name_of(path)}" if path else ""
                raise CheckpointError(
                    f"the optimizer{name} has no state yet, "
                    "so its state in the checkpoint would not be loaded: "
                    "pass the optimizer itself, or what "
                    "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict "
                    "(or get_state_dict) returns, or take a step first"
                )
        for key, value in entries(container):
            inner_path = (*path, key)
            name = name_of(inner_path)
            if not isinstance(value, (MutableMapping, list)):
                yield Leaf(name, container, key, value)
                continue
            is_parted = id(value) in self._copies or holds_tensors(value)
            is_object = name in self._content.objects
            has_parts = name in self._inner_names
            if isinstance(value, list) or (has_parts and not value):
                self.wholes.add(name)
            if has_parts or (is_parted and not is_object):
                yield from self.leaves(value, inner_path)
            elif is_parted:
                self.problems.append(ONE_OBJECT.format(name))
            elif isinstance(value, list) or is_object or any(True for _ in values(value)):
                # Dicts without values leave no trace in a checkpoint.
                yield Leaf(name, container, key, value)


def compare(plan: LoadPlan, objects: Sequence[Any], strict: bool) -> LoadPlan:
    """The plan with the names that are missing in the objects, once these were read.

    Raises CheckpointError if an object cannot be put in its place.
    """
    missing = [*plan.missing]
    problems = []
    for leaf, value in zip(plan.objects, objects):
        if isinstance(leaf.value, MutableMapping) and not isinstance(value, MutableMapping):
            problems.append(ONE_OBJECT.format(leaf.name))
            continue
        problems += _misfits_within(leaf.name, leaf.value, value)
        live_names = {name_of(inner) for inner, _ in values(leaf.value, (leaf.name,))}
        if live_names != {leaf.name}:
            committed = {name_of(inner) for inner, _ in values(value, (leaf.name,))}
            missing += sorted(live_names - committed)
    if strict and missing:
        problems.append(f"the checkpoint has no {', '.join(missing)}")
    if problems:
        raise CheckpointError("; ".join(problems))
    return replace(plan, missing=tuple(missing))


def _misfits_within(name: str, live: Any, value: Any) -> Iterator[str]:
    """Why the tensors in a tuple cannot be filled from the object in its place."""
    import torch

    if isinstance(live, torch.Tensor):
        problem: str | None = "is a tensor only in the state dict"
        if isinstance(value, torch.Tensor):
            problem = _tensor_misfit(live, tuple(value.shape), value.dtype)
        if problem:
            yield f"{name} {problem}"
    elif any(True for _ in streams.tensors_in(live)):
        is_container = isinstance(value, (MutableMapping, list, tuple))
        inner = {str(key): item for key, item in entries(value)} if is_container else {}
        if isinstance(live, (list, tuple)) and len(live) != len(inner):
            yield f"{name} has {len(live)} elements here and {len(inner)} in the checkpoint"
        for key, item in entries(live):
            yield from _misfits_within(f"{name}.{key}", item, inner.get(str(key)))


def _misfits(leaves: Sequence[Leaf], content: Manifest) -> list[str]:
    problems = []
    names: set[str] = set()
    first_names: dict[tuple[Any, ...], str] = {}
    for leaf in leaves:
        if leaf.name in names:
            problems.append(f"{leaf.name} is the name of two values in the state dict")
            continue
        names.add(leaf.name)
        problem = _misfit(leaf, content)
        if problem:
            problems.append(problem)
        elif leaf.name in content.tensors or leaf.name in content.objects:
            first_name = first_names.setdefault(_memory_key(leaf), leaf.name)
            if _content_of(first_name, content) != _content_of(leaf.name, content):
                problems.append(
                    f"{first_name} and {leaf.name} are one value here, and two in the checkpoint"
                )
    return problems


def _memory_key(leaf: Leaf) -> tuple[Any, ...]:
    """Equal for values of which the later one would overwrite the other."""
    import torch

    value = leaf.value
    if not isinstance(value, torch.Tensor):
        return id(leaf.container), leaf.key
    local = value.to_local() if hasattr(value, "to_local") else value
    if hasattr(value, "local_shards") or not local.numel() or not has_memory(local):
        return (id(value),)
    return local.data_ptr(), local.dtype, local.shape, local.stride()


def _content_of(name: str, content: Manifest) -> Any:
    """Equal for equal content."""
    if name in content.objects:
        return content.objects[name].digest
    records = content.tensors[name].records
    return [(record.offsets, record.sizes, record.digest) for record in records]


def _misfit(leaf: Leaf, content: Manifest) -> str | None:
    """Why the value cannot be filled from the checkpoint; None if it can, or if the name is
    missing.
    """
    import torch

    name, tensor, committed = leaf.name, leaf.value, content.tensors.get(leaf.name)
    is_object = name in content.objects
    if not isinstance(tensor, torch.Tensor):
        if committed:
            return f"{name} is a tensor only in the checkpoint"
        return hidden_state(name, tensor) if is_object else None
    if committed is None:
        return f"{name} is a tensor only in the state dict" if is_object else None
    dtype = getattr(torch, committed.dtype.rpartition(".")[2], None)
    if not isinstance(dtype, torch.dtype):
        return (
            f"{name} is {committed.dtype} in the checkpoint, "
            f"which torch {torch.__version__} does not have"
        )
    problem = _tensor_misfit(tensor, committed.shape, dtype)
    return f"{name} {problem}" if problem else None


def _tensor_misfit(tensor: torch.Tensor, shape: Shape, dtype: torch.dtype) -> str | None:
    """Why the tensor cannot be filled from one of this shape and type."""
    import torch

    if tuple(tensor.shape) != shape:
        return f"is {list(tensor.shape)} here and {list(shape)} in the checkpoint"
    if tensor.device.type == "meta":
        return "is on the meta device: it has no memory to read into"
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not has_memory(local):
        if not hasattr(tensor, "local_shards"):
            return (
                f"is a {type(tensor).__name__} here, which owns no memory: "
                "load the tensors it is made of"
            )
    elif any(step == 0 and size > 1 for step, size in zip(local.stride(), local.shape)):
        return (
            "is expanded here, so several elements share one place in memory: "
            "load into a copy of it"
        )
    if not torch.can_cast(dtype, tensor.dtype):
        return f"is {tensor.dtype} here, which cannot hold the {dtype} in the checkpoint"
    return None


def _plan_by_torch(tensors: dict[str, torch.Tensor], content: Manifest) -> list[RecordRead] | None:
    """The reads for this rank's parts. None if torch has no distributed checkpoints (1.13)."""
    described = dcp.metadata(content, tensors)
    if described is None:
        return None
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, described, is_coordinator=True)
    boxes = {}
    for name in tensors:
        for record in content.tensors[name].records:
            boxes[name, record.offsets] = record
    reads = []
    for item in planner.create_local_plan().items:
        name = item.storage_index.fqn
        reads.append(
            RecordRead(
                name=name,
                record=boxes[name, tuple(item.storage_index.offset)],
                begin=tuple(item.storage_offsets),
                lengths=tuple(item.lengths),
                target=partial(planner.resolve_tensor, item),
            )
        )
    return reads


def narrow(tensor: torch.Tensor, begin: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    for axis, (start, length) in enumerate(zip(begin, lengths)):
        tensor = tensor.narrow(axis, start, length)
    return tensor
