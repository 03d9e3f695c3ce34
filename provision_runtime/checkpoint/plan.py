"""From a state dict to what each rank writes: boxes of tensors and objects, each written by one
rank.

If torch has distributed checkpoints (2.0 and later), its own planner names and cuts the state dict,
so that nested dicts, DTensor and ShardedTensor mean here what they mean to `dcp.load`. Older
releases get plain tensors in nested dicts.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Sequence

from ..comm.store import RanksMissing, StoreLost
from . import streams
from .errors import CheckpointError
from .items import OBJECT, Item, Paths, SavePlan, Shape
from .nested import Expansion, hidden_state, is_distributed, name_of, values
from .rank_errors import exchange_or_fail
from .serialize import has_memory
from .unpickle import runs_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..comm.ranks import Ranks

CONSEQUENCE = "nothing was saved"
# What torch.save writes around the elements of a tensor. Few tensors always get it.
ARCHIVE_BYTES = 1600
MANY = 1000
SMALL_TENSORS = (
    "the state dict has so many small tensors that what torch.distributed.checkpoint.load needs "
    "would take more space than they do: it was left out, and only provision_runtime.checkpoint.load "
    "reads this checkpoint. Pass for_dcp=True to write it, or for_dcp=False to omit this warning"
)


def plan_save(
    state_dict: Mapping[str, object],
    ranks: Ranks,
    for_dcp: bool | None = None,
    problem: Exception | None = None,
) -> SavePlan:
    """What this rank writes. All ranks call it.

    for_dcp: whether plain DCP can read it; None: unless the archives around the tensors would take
    more than these. problem: why this rank cannot save at all; raised here, after the other
    ranks have received it.

    Raises CheckpointError, on every rank, if a state dict holds what cannot be saved, or if ranks
    hold different boxes at one place of a tensor, or different shapes of one tensor.
    """
    items: list[Item] = []
    paths: Paths = {}
    if problem is None:
        try:
            items, paths = local_items(state_dict)
        except Exception as error:  # whatever it is, the other ranks wait for the exchange
            problem = error
    try:
        items, is_bare = _rank_share(items, for_dcp, problem, ranks)
        items = _pickle_objects(items, ranks)
    except (RanksMissing, StoreLost) as error:
        raise CheckpointError(f"nothing was saved: {error}") from error
    return SavePlan(tuple(items), {} if is_bare else paths, is_bare=is_bare)


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


def _rank_share(
    items: list[Item], for_dcp: bool | None, problem: Exception | None, ranks: Ranks
) -> tuple[list[Item], bool]:
    """The items that this rank writes, and whether without archives around the tensors.

    The ranks exchange their lists only if these differ: with replicas a digest is all they send.
    """
    boxes = []
    for item in items:
        size = 0 if item.is_object else item.bytes
        boxes.append(Box(item.name, item.offsets, item.sizes, item.shape, item.dtype, size))
    digest = ""
    if ranks.world_size > 1:
        digest = hashlib.sha256(json.dumps(boxes).encode()).hexdigest()
    digests = exchange_or_fail("checkpoint/plans", ranks, digest, problem, CONSEQUENCE)
    boxes_by_rank = [boxes] * ranks.world_size
    if len(set(digests)) > 1:
        boxes_by_rank = []
        for fields_of_boxes in ranks.exchange("checkpoint/boxes", boxes):
            boxes_by_rank.append([Box(*fields) for fields in fields_of_boxes])
    is_bare = not for_dcp
    if for_dcp is None:
        is_bare = _are_small(boxes_by_rank)
        if is_bare and ranks.rank == 0:
            warnings.warn(SMALL_TENSORS, stacklevel=2)
    if ranks.world_size == 1:
        return items, is_bare
    writers = assign(boxes_by_rank)
    share = [item for item, box in zip(items, boxes) if writers[box.key] == ranks.rank]
    return share, is_bare


def _are_small(boxes_by_rank: Sequence[Sequence[Box]]) -> bool:
    """Whether archives around the tensors would take more than the tensors. The same on all ranks."""
    tensors = {box.key: box.size for boxes in boxes_by_rank for box in boxes if box.dtype != OBJECT}
    return len(tensors) > MANY and sum(tensors.values()) < len(tensors) * ARCHIVE_BYTES


def assign(boxes_by_rank: Sequence[Sequence[Box]]) -> dict[tuple[object, ...], int]:
    """Which rank writes each box, the same on every rank: so that all write about as much.

    The biggest box first, to the holder with the least so far. Objects go to the lowest rank, as in
    torch's planner. Raises CheckpointError if two ranks disagree about a tensor.
    """
    holders: dict[tuple[object, ...], list[int]] = {}
    first_boxes: dict[tuple[object, ...], Box] = {}
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
            first = first_boxes.setdefault(box.key, box)
            if box.sizes != first.sizes:
                raise CheckpointError(
                    f"{box.name} is cut differently on rank {rank}: {box.sizes} at {box.offsets}, "
                    f"elsewhere {first.sizes}"
                )
            holders.setdefault(box.key, []).append(rank)
    load = [0] * len(boxes_by_rank)
    writers = {}
    for box in sorted(first_boxes.values(), key=lambda box: (-box.size, str(box.key))):
        writer = holders[box.key][0]
        if box.dtype != OBJECT:
            writer = min(holders[box.key], key=lambda rank: (load[rank], rank))
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
        objects = [item.data for item in items if item.is_object]
        streams.wait_for(streams.devices_of(streams.tensors_in(objects)))
        for item in items:
            pickled.append(replace(item, data=_pickle(item)) if item.is_object else item)
    except Exception as error:  # whatever it is, the other ranks wait for the exchange
        problem = error
    exchange_or_fail("checkpoint/pickled", ranks, None, problem, CONSEQUENCE)
    return pickled


def _pickle(item: Item) -> bytes:
    import torch

    problem = hidden_state(item.name, item.data)
    if problem:
        raise CheckpointError(problem)
    buffer = io.BytesIO()
    try:
        torch.save(item.data, buffer)
    except Exception as error:  # pickle lets through whatever an object's own methods raise
        raise CheckpointError(
            f"{item.name} cannot be pickled: {type(error).__name__}: {error}"
        ) from error
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


def local_items(
    state_dict: Mapping[str, object],
) -> tuple[list[Item], Paths]:
    """The items of this rank, and each name's path; objects are not pickled yet."""
    expansion = Expansion(state_dict)
    # Only releases with distributed checkpoints: 1.13 has no planner to agree with.
    import torch

    major, minor = torch.__version__.split(".")[:2]
    leaves = list(
        values(
            expansion.tree,
            as_before_2_4=major == "2" and minor.isdigit() and int(minor) < 4,
            copies=expansion.copies,
        )
    )
    counts = Counter(name_of(path) for path, _ in leaves)
    duplicates = sorted(name for name, count in counts.items() if count > 1)
    if duplicates:
        raise CheckpointError(
            f"the state dict cannot be saved: two values have the name {', '.join(duplicates)}"
        )
    named = {name_of(path): value for path, value in leaves}
    paths = {name_of(path): path for path, _ in leaves}
    items = None
    if any(is_distributed(value) for value in named.values()):
        items = _plan_by_torch(named)
    if items is None:
        items = _plan_plain(named)
    storable = []
    for item in items:
        # A tensor that is cut into fewer parts than there are ranks has empty boxes on some.
        is_empty_box = not item.is_object and 0 in item.sizes and 0 not in item.shape
        if not is_empty_box:
            _check_storable(item)
            storable.append(item)
    return storable, paths


def _plan_by_torch(named: Mapping[str, object]) -> list[Item] | None:
    """None if torch has no distributed checkpoints."""
    try:
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.planner import WriteItemType
    except ImportError:
        return None
    planner = DefaultSavePlanner(flatten_state_dict=False)
    try:
        # The coordinator plans the objects too (2.3); here every rank does, and _rank_share leaves
        # each object to one rank.
        planner.set_up_planner(named, is_coordinator=True)
    except ValueError as error:
        raise CheckpointError(f"the state dict cannot be saved: {error}") from error
    for name, value in planner.state_dict.items():
        # torch would save one rank's summand as if it were the sum.
        placements = getattr(value, "placements", ()) if is_distributed(value) else ()
        if any(placement.is_partial() for placement in placements):
            raise CheckpointError(
                f"{name} is a DTensor whose ranks hold summands ({placements}): "
                "redistribute it first"
            )
    items = []
    for write in planner.create_local_plan().items:
        name = write.index.fqn
        if write.type == WriteItemType.BYTE_IO:
            items.append(Item(name, OBJECT, planner.state_dict[name]))
            continue
        data = planner.resolve_data(write)
        chunk = write.tensor_data.chunk
        shape = tuple(write.tensor_data.size)
        items.append(_box(name, data, shape, tuple(chunk.offsets), tuple(chunk.sizes)))
    return items


def _plan_plain(named: Mapping[str, object]) -> list[Item]:
    import torch

    items: list[Item] = []
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            shape = tuple(value.shape)
            items.append(_box(name, value, shape, (0,) * value.dim(), shape))
        else:
            items.append(Item(name, OBJECT, value))
    return items


def _box(
    name: str,
    data: torch.Tensor,
    shape: Shape,
    offsets: Shape,
    sizes: Shape,
) -> Item:
    return Item(name, str(data.dtype), data.detach(), shape, offsets, sizes)


def _check_storable(item: Item) -> None:
    """Raises CheckpointError for a tensor that has no bytes to save."""
    import torch

    if item.is_object:
        return
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
