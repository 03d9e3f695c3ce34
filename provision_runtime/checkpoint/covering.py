"""Whether boxes make up a tensor: all of it, and no element twice. Works without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .manifest import Record


def problem(shape: Sequence[int], boxes: Sequence[Record]) -> str | None:
    """What is wrong, in words. Boxes that do not overlap and have the tensor's volume leave no gap."""
    held, wanted = sum(math.prod(box.sizes) for box in boxes), math.prod(shape)
    if held != wanted:
        return f"the ranks hold {held} of its {wanted} elements"
    twice = _overlap(boxes) if shape else None
    return (
        twice
        and f"the ranks' boxes at {list(twice[0].offsets)} and {list(twice[1].offsets)} overlap, so others of its elements are missing"
    )


def _overlap(boxes: Sequence[Record]) -> tuple[Record, Record] | None:
    """Two that have an element in common. Along the dimension that most cuts are in, only neighbors are compared."""
    axis = (
        max(
            range(len(boxes[0].offsets)),
            key=lambda place: len({box.offsets[place] for box in boxes}),
        )
        if boxes
        else 0
    )
    near: list[Record] = []
    for box in sorted(boxes, key=lambda box: box.offsets[axis]):
        near = [
            other for other in near if other.offsets[axis] + other.sizes[axis] > box.offsets[axis]
        ]
        for other in near:
            if _meet(other, box):
                return other, box
        near.append(box)
    return None


def _meet(one: Record, other: Record) -> bool:
    sides = zip(one.offsets, one.sizes, other.offsets, other.sizes)
    return all(
        begin < start + length and start < begin + size for begin, size, start, length in sides
    )
