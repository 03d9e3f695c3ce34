"""Which records of a checkpoint a state dict needs, and where each of them goes.

Everything that does not fit is reported at once. Names are matched here and not by torch, whose
releases name nested dicts differently: up to 2.3 a dict without tensors is one object, later its
values are. Both are accepted, in the state dict and in the checkpoint. torch's own planner works
out how boxes overlap; plain tensors do not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from . import dcp, manifest
from .errors import CheckpointError
from .plan import is_distributed, name_of, values
from .serialize import has_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from .manifest import Manifest, Record


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
    begin: tuple[int, ...]
    lengths: tuple[int, ...]
    target: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class LoadPlan:
    """missing: names that the checkpoint lacks, and whose values stay (strict=False)."""

    tensors: tuple[RecordRead, ...]
    objects: tuple[Leaf, ...]
    missing: tuple[str, ...] = ()


def match(state_dict: dict[str, Any], content: Manifest, strict: bool = True) -> LoadPlan:
    """What this rank reads.

    Raises CheckpointError with every name that does not fit, or that the checkpoint lacks; if not
    strict, the latter stay as they are.
    """
    leaves = list(find_leaves(state_dict, content))
    missing = []
    if not strict:
        present = {*content.tensors, *content.objects}
        missing = [leaf.name for leaf in leaves if leaf.name not in present]
        leaves = [leaf for leaf in leaves if leaf.name in present]
    _check_fit(leaves, content)
    tensors = {leaf.name: leaf.value for leaf in leaves if leaf.name in content.tensors}
    objects = tuple(leaf for leaf in leaves if leaf.name in content.objects)
    reads = None
    if any(is_distributed(tensor) for tensor in tensors.values()):
        reads = _plan_by_torch(tensors, content)
    if reads is None:
        reads = _plan_plain(tensors, content)
    return LoadPlan(tuple(reads), objects, tuple(missing))


def find_leaves(state_dict: Mapping[str, Any], content: Manifest) -> Iterator[Leaf]:
    """The values to fill: tensors, other values, and containers that the checkpoint holds as one
    object.

    Raises CheckpointError if an optimizer would come back without its state: before its first step
    it has none, so nothing would be read.
    """
    inner_names = set()
    for name in (*content.tensors, *content.objects):
        for at, letter in enumerate(name):
            if letter == ".":
                inner_names.add(name[:at])
    return _find_leaves(state_dict, (), content, inner_names)


def _find_leaves(
    container: Any, path: tuple[Any, ...], content: Manifest, inner_names: set[str]
) -> Iterator[Leaf]:
    """inner_names: the names of containers in the checkpoint."""
    entries: Any = enumerate(container)
    if isinstance(container, Mapping):
        entries = list(container.items())
        is_new_optimizer = "param_groups" in container and container.get("state") == {}
        if is_new_optimizer and name_of((*path, "state")) in inner_names:
            name = f" {name_of(path)}" if path else ""
            raise CheckpointError(
                f"the optimizer{name} has no state yet, "
                "so its state in the checkpoint would not be loaded: "
                "pass the optimizer itself, or what "
                "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict "
                "(or get_state_dict) returns, or take a step first"
            )
    for key, value in entries:
        inner_path = (*path, key)
        name = name_of(inner_path)
        is_container = isinstance(value, (Mapping, list))
        if is_container and name in content.objects and not _holds_tensors(value):
            is_container = False
        if not is_container:
            yield Leaf(name, container, key, value)
        elif name in inner_names:
            yield from _find_leaves(value, inner_path, content, inner_names)
        elif isinstance(value, list) or any(True for _ in values(value)):
            # Dicts without values leave no trace in a checkpoint.
            yield Leaf(name, container, key, value)


def _holds_tensors(value: Any) -> bool:
    import torch

    return any(isinstance(inner, torch.Tensor) for _, inner in values(value))


def _check_fit(leaves: Sequence[Leaf], content: Manifest) -> None:
    missing = []
    for leaf in leaves:
        if leaf.name not in content.tensors and leaf.name not in content.objects:
            missing.append(leaf.name)
    problems = []
    if missing:
        problems.append(f"the checkpoint of step {content.step} has no {', '.join(missing)}")
    names: set[str] = set()
    for leaf in leaves:
        if leaf.name in names:
            problems.append(f"{leaf.name} is the name of two values in the state dict")
            continue
        names.add(leaf.name)
        problem = _misfit(leaf, content)
        if problem:
            problems.append(f"{leaf.name} {problem}")
    if problems:
        raise CheckpointError("; ".join(problems))


def _misfit(leaf: Leaf, content: Manifest) -> str | None:
    """Why the value cannot be filled from the checkpoint; None if it can, or if the name is
    missing.
    """
    import torch

    tensor, committed = leaf.value, content.tensors.get(leaf.name)
    if not isinstance(tensor, torch.Tensor):
        return "is a tensor only in the checkpoint" if committed else None
    if committed is None:
        is_object = leaf.name in content.objects
        return "is a tensor only in the state dict" if is_object else None
    if tuple(tensor.shape) != committed.shape:
        return f"is {list(tensor.shape)} here and {list(committed.shape)} in the checkpoint"
    gap = manifest.coverage_problem(committed.shape, committed.records)
    if gap:
        return f"is incomplete in the checkpoint: {gap}"
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
    if not hasattr(torch, committed.dtype.rpartition(".")[2]):
        return (
            f"is {committed.dtype} in the checkpoint, which torch {torch.__version__} does not have"
        )
    if not torch.can_cast(dcp.dtype_of(committed.dtype), tensor.dtype):
        return f"is {tensor.dtype} here, which cannot hold the {committed.dtype} in the checkpoint"
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


def _plan_plain(tensors: dict[str, torch.Tensor], content: Manifest) -> list[RecordRead]:
    reads = []
    for name, tensor in tensors.items():
        for record in content.tensors[name].records:
            begin = (0,) * len(record.sizes)
            target = partial(narrow, tensor, record.offsets, record.sizes)
            reads.append(RecordRead(name, record, begin, record.sizes, target))
    return reads


def narrow(tensor: torch.Tensor, begin: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    for axis, (start, length) in enumerate(zip(begin, lengths)):
        tensor = tensor.narrow(axis, start, length)
    return tensor
