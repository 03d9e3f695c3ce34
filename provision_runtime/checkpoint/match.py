"""Which records of a checkpoint a state dict needs, and where each of them goes; refused as a whole where something does not fit.

Names are matched here and not by torch, whose releases name nested dicts differently: up to 2.3 a dict without tensors is one
object, later its values are. Both are found, from either side. How boxes overlap is torch's own planner's; plain tensors need none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from . import covering, dcp, manifest
from .plan import is_distributed, name_of, values
from .serialize import has_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from .manifest import Manifest, Record


@dataclass(frozen=True)
class Leaf:
    """A value of the state dict that the checkpoint is to fill. It stands in `container` at `key`."""

    name: str
    container: Any
    key: Any
    value: Any


@dataclass(frozen=True)
class Read:
    """A part of a record that this rank needs: `lengths` elements from `begin` on of its box go to what `target` returns."""

    name: str
    record: Record
    begin: tuple[int, ...]
    lengths: tuple[int, ...]
    target: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Wanted:
    tensors: tuple[Read, ...]
    objects: tuple[Leaf, ...]


def match(state_dict: dict[str, Any], content: Manifest) -> Wanted:
    """Raises CheckpointError, with all that does not fit, where a name is not in the checkpoint or is something else there."""
    found = list(leaves(state_dict, content))
    _refuse_misfits(found, content)
    tensors = {leaf.name: leaf.value for leaf in found if leaf.name in content.tensors}
    planned = (
        _planned_by_torch(tensors, content) if any(map(is_distributed, tensors.values())) else None
    )
    reads = planned if planned is not None else list(_planned_plainly(tensors, content))
    return Wanted(tuple(reads), tuple(leaf for leaf in found if leaf.name in content.objects))


def leaves(state_dict: Mapping[str, Any], content: Manifest) -> Iterator[Leaf]:
    """What is to be filled: tensors and whatever is no container; containers that the checkpoint holds as one object. Raises
    CheckpointError where an optimizer would come back without its state: it has none before its first step, so nothing would be read."""
    inner = {
        there[:place]
        for there in (*content.tensors, *content.objects)
        for place, letter in enumerate(there)
        if letter == "."
    }
    return _leaves(state_dict, (), content, inner)


def _leaves(
    container: Any, path: tuple[Any, ...], content: Manifest, inner: set[str]
) -> Iterator[Leaf]:
    is_mapping = isinstance(container, Mapping)
    if is_mapping and _is_new_optimizer(container) and name_of((*path, "state")) in inner:
        raise manifest.CheckpointError(
            f"the optimizer{' ' if path else ''}{name_of(path)} has no state yet, and would be left without what the checkpoint has of it: "
            "pass what torch.distributed.checkpoint.state_dict.get_optimizer_state_dict (or get_state_dict) returns, or take a step first"
        )
    for key, value in list(container.items()) if is_mapping else enumerate(container):
        here = (*path, key)
        name = name_of(here)
        if not isinstance(value, (Mapping, list)) or (
            name in content.objects and not _holds_tensors(value)
        ):
            yield Leaf(name, container, key, value)
        elif name in inner:
            yield from _leaves(value, here, content, inner)
        elif isinstance(value, list) or any(
            True for _ in values(value)
        ):  # dicts without values leave no trace in a checkpoint
            yield Leaf(name, container, key, value)


def _is_new_optimizer(said: Mapping[str, Any]) -> bool:
    return "param_groups" in said and said.get("state") == {}


def _holds_tensors(value: Any) -> bool:
    import torch

    return any(isinstance(inner, torch.Tensor) for _, inner in values(value))


def _refuse_misfits(found: Sequence[Leaf], content: Manifest) -> None:
    missing = [
        leaf.name
        for leaf in found
        if leaf.name not in content.tensors and leaf.name not in content.objects
    ]
    problems = (
        [f"the checkpoint of step {content.step} has no {', '.join(missing)}"] if missing else []
    )
    seen: set[str] = set()
    for leaf in found:
        problem = "stands for two values here" if leaf.name in seen else _misfit(leaf, content)
        seen.add(leaf.name)
        problems += [f"{leaf.name} {problem}"] if problem else []
    if problems:
        raise manifest.CheckpointError("; ".join(problems))


def _misfit(leaf: Leaf, content: Manifest) -> str | None:
    import torch

    here, there = leaf.value, content.tensors.get(leaf.name)
    if not isinstance(here, torch.Tensor):
        return "is no tensor here, and one in the checkpoint" if there else None
    if there is None:
        return (
            "is a tensor here, and none in the checkpoint" if leaf.name in content.objects else None
        )
    if tuple(here.shape) != there.shape:
        return f"is {list(here.shape)} here and {list(there.shape)} in the checkpoint"
    gap = covering.problem(there.shape, there.records)
    if gap:
        return f"is not whole in the checkpoint: {gap}"
    if here.device.type == "meta":
        return "is on the meta device: it has no memory to read into"
    local = here.to_local() if hasattr(here, "to_local") else here
    if not has_memory(local) and not hasattr(here, "local_shards"):
        return f"is a {type(here).__name__} here, which has no memory of its own: load the tensors it is made of"
    if has_memory(local) and any(
        step == 0 and size > 1 for step, size in zip(local.stride(), local.shape)
    ):
        return "is expanded here, so that several elements are one place in memory: load into a copy of it"
    if not hasattr(torch, there.dtype.rpartition(".")[2]):
        return f"is {there.dtype} in the checkpoint, which torch {torch.__version__} does not have"
    if not torch.can_cast(dcp.dtype_of(there.dtype), here.dtype):
        return f"is {here.dtype} here, which cannot hold the {there.dtype} in the checkpoint"
    return None


def _planned_by_torch(tensors: dict[str, torch.Tensor], content: Manifest) -> list[Read] | None:
    """The reads for this rank's parts. None where torch has no distributed checkpoints (1.13)."""
    described = dcp.metadata(content, tensors)
    if described is None:
        return None
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, described, is_coordinator=True)
    boxes = {
        (name, record.offsets): record
        for name in tensors
        for record in content.tensors[name].records
    }
    reads = []
    for item in planner.create_local_plan().items:
        name, offset = item.storage_index.fqn, tuple(item.storage_index.offset)
        target = partial(planner.resolve_tensor, item)
        reads.append(
            Read(
                name, boxes[name, offset], tuple(item.storage_offsets), tuple(item.lengths), target
            )
        )
    return reads


def _planned_plainly(tensors: dict[str, torch.Tensor], content: Manifest) -> Iterator[Read]:
    for name, tensor in tensors.items():
        for record in content.tensors[name].records:
            yield Read(
                name,
                record,
                (0,) * len(record.sizes),
                record.sizes,
                partial(narrow, tensor, record.offsets, record.sizes),
            )


def narrow(tensor: torch.Tensor, begin: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    for axis, (start, length) in enumerate(zip(begin, lengths)):
        tensor = tensor.narrow(axis, start, length)
    return tensor
