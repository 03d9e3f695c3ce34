"""From a state dict to what each rank writes: boxes of tensors and objects, each written by one
rank.

torch's own planner cuts DTensor, ShardedTensor and other types that know which part of them is
local; it came with torch 2.0.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from ..comm.store import RanksMissing, StoreLost
from .errors import CheckpointError
from .items import OBJECT, Item
from .memory import has_memory
from .nested import Expansion, hidden_state
from .rank_errors import exchange_or_fail
from .unpickle import runs_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..comm.ranks import Ranks

CONSEQUENCE = "nothing was saved"


def plan_save(
    state_dict: Mapping[str, object], ranks: Ranks, problem: Exception | None = None
) -> list[Item]:
    """What this rank writes. All ranks call it.

    problem: why this rank cannot save at all; raised here, after the other ranks have received it.

    Raises CheckpointError, on every rank, if a state dict holds what cannot be saved, or if ranks
    hold different boxes at one place of a tensor, or different shapes of one tensor.
    """
    items: list[Item] = []
    if problem is None:
        try:
            items = local_items(state_dict)
        except Exception as error:  # whatever it is, the other ranks wait for the exchange
            problem = error
    try:
        return _pickle_objects(_rank_share(items, problem, ranks), ranks)
    except (RanksMissing, StoreLost) as error:
        raise CheckpointError(f"nothing was saved: {error}") from error


# Which rank writes what


class Box(NamedTuple):
    """What the other ranks must know of an item.

    size: in bytes; 0 for an object, which may have another size on each rank (a random state).
    """

    name: str
    offsets: Sequence[int]
    sizes: Sequence[int]
    shape: Sequence[int]
    dtype: str
    size: int

    @property
    def key(self) -> tuple[object, ...]:
        return (self.name, *self.offsets)


def _rank_share(items: list[Item], problem: Exception | None, ranks: Ranks) -> list[Item]:
    """The items that this rank writes.

    The ranks exchange their lists only if these differ: with replicas a digest is all they send.
    """
    boxes = [
        Box(
            item.name,
            item.offsets,
            item.sizes,
            item.shape,
            item.dtype,
            0 if item.is_object else item.bytes,
        )
        for item in items
    ]
    digest = ""
    if ranks.world_size > 1:
        digest = hashlib.sha256(json.dumps(boxes).encode()).hexdigest()
    digests = exchange_or_fail("checkpoint/plans", ranks, digest, problem, CONSEQUENCE)
    if ranks.world_size == 1:
        return items
    boxes_by_rank = [boxes] * ranks.world_size
    if len(set(digests)) > 1:
        reports = ranks.exchange("checkpoint/boxes", boxes)
        boxes_by_rank = [list(starmap(Box, report)) for report in reports]
    writers = assign(boxes_by_rank)
    return [item for item, box in zip(items, boxes) if writers[box.key] == ranks.rank]


def assign(boxes_by_rank: Sequence[Sequence[Box]]) -> dict[tuple[object, ...], int]:
    """Which rank writes each box, the same on every rank: so that all write about as much.

    The biggest box first, to the holder with the least so far. Objects go to the lowest rank, as in
    torch's planner. Raises CheckpointError if two ranks disagree about a tensor.
    """
    # By key: a box, and the ranks that hold it.
    holders: dict[tuple[object, ...], tuple[Box, list[int]]] = {}
    first_of_name: dict[str, tuple[Box, int]] = {}
    for rank, boxes in enumerate(boxes_by_rank):
        for box in boxes:
            named, named_rank = first_of_name.setdefault(box.name, (box, rank))
            if (box.shape, box.dtype) != (named.shape, named.dtype):
                raise CheckpointError(
                    f"{box.name} is {box.shape} {box.dtype} on rank {rank}, "
                    f"but {named.shape} {named.dtype} on rank {named_rank}: "
                    "one name must be the same tensor on all ranks"
                )
            first, ranks = holders.setdefault(box.key, (box, []))
            if box.sizes != first.sizes:
                raise CheckpointError(
                    f"{box.name} is cut differently on rank {rank}: {box.sizes} at {box.offsets}, "
                    f"elsewhere {first.sizes}"
                )
            ranks.append(rank)
    load = [0] * len(boxes_by_rank)
    writers = {}
    for box, ranks in sorted(
        holders.values(), key=lambda holder: (-holder[0].size, str(holder[0].key))
    ):
        writer = ranks[0]
        if box.dtype != OBJECT:
            writer = min(ranks, key=lambda rank: (load[rank], rank))
        writers[box.key] = writer
        load[writer] += box.size
    return writers


def _pickle_objects(items: Sequence[Item], ranks: Ranks) -> list[Item]:
    """Makes objects bytes, only on the rank that writes them.

    They may be large, and replicas on many ranks of a host.
    """
    pickled: list[Item] = []
    problem = None
    try:
        for item in items:
            pickled.append(replace(item, data=_pickle(item)) if item.is_object else item)
    except Exception as error:  # whatever it is, the other ranks wait for the exchange
        problem = error
    exchange_or_fail("checkpoint/pickled", ranks, None, problem, CONSEQUENCE)
    return pickled


def _pickle(item: Item) -> bytes:
    import torch

    problem = hidden_state(item.data)
    if problem:
        raise CheckpointError(f"{item.name} {problem}")
    buffer = io.BytesIO()
    torch.save(item.data, buffer)
    content = buffer.getvalue()
    if runs_code(content):
        warnings.warn(
            f"{item.name} is of type {type(item.data).__name__}, which must be unpickled: `load` "
            "will refuse it without allow_pickle=True. Save its values instead: numbers, strings, "
            "tensors, and lists and dicts of them",
            stacklevel=2,
        )
    return content


# The items of one rank


def local_items(state_dict: Mapping[str, object]) -> list[Item]:
    """The items of this rank; objects are not pickled yet."""
    import torch

    expansion = Expansion(state_dict)
    if expansion.duplicates:
        names = ", ".join(sorted({*expansion.duplicates}))
        raise CheckpointError(f"the state dict cannot be saved: two values have the name {names}")
    values = expansion.values
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    objects = [Item(name, OBJECT, values[name]) for name in values if name not in tensors]
    # A tensor that is cut into fewer parts than there are ranks has empty boxes on some.
    boxes = [box for box in local_boxes(tensors) if 0 not in box.sizes or 0 in box.shape]
    for box in boxes:
        _check_storable(box)
    return boxes + objects


def local_boxes(tensors: Mapping[str, Any]) -> list[Item]:
    """The parts of tensors that this rank holds, which share their memory."""
    boxes = []
    cut = {}
    for name, tensor in tensors.items():
        if is_distributed(tensor):
            cut[name] = tensor
        else:
            shape = tuple(tensor.shape)
            boxes.append(_box(name, tensor, shape, (0,) * len(shape), shape))
    return boxes + _cut_by_torch(cut) if cut else boxes


def is_distributed(value: Any) -> bool:
    """Whether it is a DTensor, a ShardedTensor or another type that knows which part of it is
    local.

    Plain tensors are planned without torch's planner, whose import takes a second and more.
    """
    kind = type(value)
    return (
        hasattr(kind, "placements")
        or hasattr(kind, "local_shards")
        or hasattr(kind, "__create_write_items__")
    )


def _cut_by_torch(tensors: Mapping[str, Any]) -> list[Item]:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, is_coordinator=True)
    for name, tensor in tensors.items():
        # torch would save one rank's summand as if it were the sum.
        placements = getattr(tensor, "placements", ())
        if any(placement.is_partial() for placement in placements):
            raise CheckpointError(
                f"{name} is a DTensor whose ranks hold summands ({placements}): "
                "redistribute it first"
            )
    boxes = []
    for write in planner.create_local_plan().items:
        name, shape, chunk = write.index.fqn, write.tensor_data.size, write.tensor_data.chunk
        data = planner.resolve_data(write)
        boxes.append(_box(name, data, shape, chunk.offsets, chunk.sizes))
    return boxes


def _box(
    name: str, data: Any, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> Item:
    return Item(name, str(data.dtype), data.detach(), tuple(shape), tuple(offsets), tuple(sizes))


def _check_storable(item: Item) -> None:
    """Raises CheckpointError for a tensor that has no bytes to save."""
    import torch

    data = item.data
    if data.device.type == "meta":
        raise CheckpointError(f"{item.name} is on the meta device: it has no values to save")
    if data.layout != torch.strided or data.is_quantized or data.is_nested:
        raise CheckpointError(
            f"{item.name} is not a dense tensor ({data.layout}, {item.dtype}): "
            "save a dense copy of it"
        )
    if not has_memory(data):
        raise CheckpointError(
            f"{item.name} is a {type(data).__name__}, which owns no memory: "
            "save the tensors it is made of"
        )
