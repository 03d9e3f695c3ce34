"""What is saved: boxes of tensors and objects, cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Dict, Tuple

from ..dataclass import frozen

# A piece is the unit of hashing, writing, linking and reading: a big tensor is cut into pieces.
# Together with writer.WORKERS this bounds the memory for staging from a GPU.
MAX_PIECE_BYTES = 32 << 20
# Pieces of this size and more are files of their own.
MIN_FILE_BYTES = 1 << 20
# Smaller ones are packed into files of about this size, since each file costs a sync. One changed
# piece is a new pack.
PACK_BYTES = 4 << 20
# A state dict, or a part of it.
StateDict = Dict[str, Any]
Names = Tuple[str, ...]
# Sizes, or offsets, by dimension.
Shape = Tuple[int, ...]
# A box's name and where in the tensor it begins.
BoxKey = Tuple[str, Shape]
OBJECT = "object"


@frozen
class Item:
    """A box of a tensor that this rank holds, or an object.

    shape: of the whole tensor; offsets, sizes: of the box in it, in elements. data: the box or the
    object as the state dict has it; in a finished plan an object is bytes.
    """

    name: str
    dtype: str
    data: Any
    shape: Shape = ()
    offsets: Shape = ()
    sizes: Shape = ()

    @property
    def is_object(self) -> bool:
        return self.dtype == OBJECT

    @property
    def box_key(self) -> BoxKey:
        return self.name, self.offsets

    @property
    def bytes(self) -> int:
        if self.is_object:
            return len(self.data)
        return int(self.data.numel()) * int(self.data.element_size())


def pieces(item: Item, limit: int = MAX_PIECE_BYTES) -> Iterator[Item]:
    """The item in boxes of at most `limit` bytes, in order. They are views: nothing is copied.

    Cuts along the first dimensions.
    """
    if item.is_object or item.bytes <= limit:
        yield item
        return
    axis = next(dimension for dimension, size in enumerate(item.sizes) if size > 1)
    row_bytes = item.bytes // item.sizes[axis]
    step = max(1, limit // row_bytes)
    offsets = list(item.offsets)
    for data in item.data.split(step, axis):
        piece = replace(item, data=data, offsets=tuple(offsets), sizes=tuple(data.shape))
        yield from pieces(piece, limit)
        offsets[axis] += piece.sizes[axis]


def packs(all_pieces: Iterable[Item], limit: int = PACK_BYTES) -> Iterator[list[Item]]:
    """What each file holds: a piece of MIN_FILE_BYTES and more alone, the others in groups of about
    `limit` bytes, in order.
    """
    pack: list[Item] = []
    size = 0
    for piece in all_pieces:
        if piece.bytes >= MIN_FILE_BYTES:
            yield [piece]
            continue
        pack.append(piece)
        size += piece.bytes
        if size >= limit:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack
