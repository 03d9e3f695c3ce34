"""From a state dict to what each rank writes: boxes of tensors and objects, every one of them written by one rank.

Where torch has distributed checkpoints (2.0 and later), its own planner names and cuts the state dict, so that nested dicts,
DTensor and ShardedTensor mean here what they mean to `dcp.load`. Older releases get plain tensors in nested dicts.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..comm.store import RanksMissing, StoreLost
from . import streams
from .assigning import meet, own_share
from .items import OBJECT, Item, Plan
from .manifest import CheckpointError
from .serialize import has_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ..comm.ranks import Ranks


def plan_save(
    state_dict: Mapping[str, Any],
    ranks: Ranks,
    for_dcp: bool = True,
    problem: Exception | None = None,
) -> Plan:
    """Raises CheckpointError, on every rank, where a state dict holds what cannot be saved, or where ranks hold different boxes of
    one tensor's place or different shapes of one tensor. problem: why this rank cannot save at all; raised here, and told to the others."""
    items: list[Item] = []
    paths: dict[str, tuple[Any, ...]] = {}
    try:
        items, paths = local_items(state_dict) if problem is None else ([], {})
    except Exception as error:  # whatever it is, the others wait for word of it
        problem = error
    try:
        own = _pickled_by_their_writers(own_share(items, problem, ranks), ranks)
        return Plan(tuple(own), paths if for_dcp else {})
    except (RanksMissing, StoreLost) as error:
        raise CheckpointError(f"nothing was saved: {error}") from error


def _pickled_by_their_writers(items: Sequence[Item], ranks: Ranks) -> list[Item]:
    """Objects become bytes on the one rank that writes them: they may be large, and replicas on many ranks of a host."""
    pickled: list[Item] = []
    problem = None
    try:
        streams.wait_for(
            streams.of(streams.tensors_in([item.data for item in items if item.is_object]))
        )
        pickled = [
            replace(item, data=_object_bytes(item)) if item.is_object else item for item in items
        ]
    except Exception as error:  # whatever it is, the others wait for word of it
        problem = error
    meet("checkpoint/pickled", ranks, None, problem)
    return pickled


def local_items(state_dict: Mapping[str, Any]) -> tuple[list[Item], dict[str, tuple[Any, ...]]]:
    """What this rank holds, by name, and each name's path; objects are not pickled yet."""
    expanded = expand(state_dict)
    leaves = list(values(expanded, as_before_2_4=_is_before_2_4()))
    _refuse_double_names([name_of(path) for path, _ in leaves])
    planned = (
        _planned_by_torch(expanded) if any(is_distributed(value) for _, value in leaves) else None
    )
    items, paths = planned if planned is not None else _planned_plainly(leaves)
    return [_storable(item) for item in items if not _is_empty_part(item)], paths


def _refuse_double_names(names: Sequence[str]) -> None:
    double = sorted({name for name, count in Counter(names).items() if count > 1})
    if double:
        raise CheckpointError(
            f"the state dict cannot be saved: {', '.join(double)} stands for two values"
        )


def _is_empty_part(item: Item) -> bool:
    """Of a tensor that is cut into fewer parts than there are ranks, some hold nothing."""
    return not item.is_object and 0 in item.sizes and 0 not in item.shape


def _planned_by_torch(
    state_dict: dict[str, Any],
) -> tuple[list[Item], dict[str, tuple[Any, ...]]] | None:
    try:
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.planner import WriteItemType
    except ImportError:
        return None
    planner = DefaultSavePlanner()
    try:
        # The coordinator plans the objects too (2.3); here every rank does, and own_share leaves each to one.
        planner.set_up_planner(state_dict, is_coordinator=True)
    except ValueError as error:
        raise CheckpointError(f"the state dict cannot be saved: {error}") from error
    for name, held in planner.state_dict.items():
        _refuse_partial_sums(name, held)
    items = []
    for write in planner.create_local_plan().items:
        name = write.index.fqn
        held = planner.state_dict[name]
        if write.type == WriteItemType.BYTE_IO:
            items.append(Item(name, OBJECT, held))
        else:
            box = write.tensor_data.chunk
            data = planner.resolve_data(write)
            items.append(
                _box(
                    name, data, tuple(write.tensor_data.size), tuple(box.offsets), tuple(box.sizes)
                )
            )
    return items, dict(planner.mappings)


def _refuse_partial_sums(name: str, value: Any) -> None:
    """torch would save one rank's summand as if it were the sum."""
    if any(placement.is_partial() for placement in getattr(value, "placements", ())):
        raise CheckpointError(
            f"{name} is a DTensor whose ranks hold summands ({value.placements}): redistribute it first"
        )


def is_distributed(value: Any) -> bool:
    """A DTensor, a ShardedTensor or whatever else says itself which part of it is here. Plain tensors are planned without torch's
    planner, whose import takes a second and more."""
    return any(
        hasattr(value, mark) for mark in ("placements", "local_shards", "__create_write_items__")
    )


def _planned_plainly(
    leaves: Sequence[tuple[tuple[Any, ...], Any]],
) -> tuple[list[Item], dict[str, tuple[Any, ...]]]:
    import torch

    items: list[Item] = []
    paths: dict[str, tuple[Any, ...]] = {}
    for path, value in leaves:
        name = name_of(path)
        paths[name] = path
        if isinstance(value, torch.Tensor):
            items.append(
                _box(name, value, tuple(value.shape), (0,) * value.dim(), tuple(value.shape))
            )
        else:
            items.append(Item(name, OBJECT, value))
    return items, paths


def values(
    container: Any, path: tuple[Any, ...] = (), as_before_2_4: bool = False
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What nested dicts and lists hold, with paths, as torch's planner takes them apart: a list that holds neither tensors nor dicts is
    one value; before torch 2.4 a dict that holds no tensor is one as well. Tuples are values."""
    if isinstance(container, (Mapping, list)) and (not path or _is_open(container, as_before_2_4)):
        for key, value in _entries(container):
            yield from values(value, (*path, key), as_before_2_4)
    else:
        yield path, container


def _entries(container: Any) -> list[tuple[Any, Any]]:
    return (
        [(str(key), value) for key, value in container.items()]
        if isinstance(container, Mapping)
        else list(enumerate(container))
    )


def _is_open(container: Any, as_before_2_4: bool) -> bool:
    import torch

    if isinstance(container, Mapping) and not as_before_2_4:
        return True
    inner = (value for _, value in _entries(container))
    return any(
        isinstance(value, torch.Tensor)
        or (isinstance(value, (Mapping, list)) and _is_open(value, as_before_2_4))
        for value in inner
    )


def _is_before_2_4() -> bool:
    """Of the releases with distributed checkpoints; 1.13 has none to agree with."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return major == "2" and minor.isdigit() and int(minor) < 4


def name_of(path: Sequence[Any]) -> str:
    """As torch's planner names what stands there."""
    return ".".join(map(str, path))


def _object_bytes(item: Item) -> bytes:
    import torch

    buffer = io.BytesIO()
    try:
        torch.save(item.data, buffer)
    except Exception as error:  # pickle lets through whatever an object's own methods raise
        raise CheckpointError(
            f"{item.name} cannot be pickled: {type(error).__name__}: {error}"
        ) from error
    return buffer.getvalue()


def _box(
    name: str,
    data: torch.Tensor,
    shape: tuple[int, ...],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
) -> Item:
    return Item(name, str(data.dtype), data.detach(), shape, offsets, sizes)


def _storable(item: Item) -> Item:
    """Refuses what has no bytes to save."""
    import torch

    if item.is_object:
        return item
    if item.data.device.type == "meta":
        raise CheckpointError(f"{item.name} is on the meta device: it has no values to save")
    if item.data.layout != torch.strided or item.data.is_quantized or item.data.is_nested:
        raise CheckpointError(
            f"{item.name} is not a dense tensor ({item.data.layout}, {item.dtype}): save a dense copy of it"
        )
    if not has_memory(item.data):
        raise CheckpointError(
            f"{item.name} is a {type(item.data).__name__}, which has no memory of its own: save the tensors it is made of"
        )
    return item


def expand(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict with what its Stateful values say in their place. Raises CheckpointError where it is none."""
    if not isinstance(state_dict, Mapping):
        raise CheckpointError(
            f"the state dict is of type {type(state_dict).__name__}: give a dict of names and values"
        )
    return {
        key: value.state_dict() if is_stateful(value) else value
        for key, value in state_dict.items()
    }


def is_stateful(value: Any) -> bool:
    """As torch.distributed.checkpoint.stateful.Stateful says; a module or an optimizer may be given as it is."""
    return callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    )
