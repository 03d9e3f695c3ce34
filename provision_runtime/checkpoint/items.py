"""What is saved: boxes of tensors and objects, cut into pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Tuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A piece is the unit of hashing, writing, linking and reading: a big tensor is cut into such. With WORKERS of threads.py it bounds
# the memory that staging from a GPU takes.
PIECE = 32 << 20
# Small pieces are packed into files of about this size.
PACK = 16 << 20
# A box's name and where in the tensor it begins.
Place = Tuple[str, Tuple[int, ...]]
OBJECT = "object"


@dataclass(frozen=True)
class Item:
    """A box of a tensor that this rank holds, or an object.

    shape: of the whole tensor; offsets, sizes: of the box in it, in elements. data: the box itself, or the object: as the state
    dict has it, and as bytes in a plan.
    """

    name: str
    dtype: str
    data: Any
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def is_object(self) -> bool:
        return self.dtype == OBJECT

    @property
    def place(self) -> Place:
        return self.name, self.offsets

    @property
    def bytes(self) -> int:
        return (
            len(self.data)
            if self.is_object
            else int(self.data.numel()) * int(self.data.element_size())
        )


@dataclass(frozen=True)
class Plan:
    """What this rank writes, and where each name stands in the nested state dict (of all ranks' names).

    digests: the SHA-256 of the records of some pieces, by `Item.place`: known since their content is that of an earlier save.
    """

    items: tuple[Item, ...]
    paths: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    digests: Mapping[Place, str] = field(default_factory=dict)


def pieces(item: Item, limit: int = PIECE) -> Iterator[Item]:
    """The item in boxes of at most `limit` bytes each, cut along its first dimensions, in order. Views: nothing is copied."""
    if item.is_object or item.bytes <= limit:
        yield item
        return
    axis = next(place for place, size in enumerate(item.sizes) if size > 1)
    row = item.bytes // item.sizes[axis]
    step = max(1, limit // row)
    for begin in range(0, item.sizes[axis], step):
        yield from pieces(_cut(item, axis, begin, min(step, item.sizes[axis] - begin)), limit)


def packs(small: Sequence[Item], limit: int = PACK) -> Iterator[list[Item]]:
    """Pieces in groups of about `limit` bytes, in order."""
    group: list[Item] = []
    size = 0
    for piece in small:
        group.append(piece)
        size += piece.bytes
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group


def _cut(item: Item, axis: int, begin: int, length: int) -> Item:
    offsets = (*item.offsets[:axis], item.offsets[axis] + begin, *item.offsets[axis + 1 :])
    sizes = (*item.sizes[:axis], length, *item.sizes[axis + 1 :])
    return replace(item, data=item.data.narrow(axis, begin, length), offsets=offsets, sizes=sizes)
