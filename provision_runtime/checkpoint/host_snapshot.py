"""A copy of the state in host memory, kept from save to save.

Memory that is there already costs no page faults. And what still equals the copy is neither copied nor hashed again: comparing is
as fast as copying, and several times as fast as SHA-256.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from . import streams
from .compare import first_difference
from .items import pieces
from .serialize import is_plain
from .threads import hashing_threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from .items import Item, Place, Plan

# What is smaller is copied without a look: it costs more to find out whether it changed than to hash it.
COMPARED = 1 << 20


class Snapshot:
    """One at a time of `take` and `learn`; between the two the copy stands still."""

    def __init__(self) -> None:
        self._memory: dict[Place, torch.Tensor] = {}
        # Of pieces of the copy, as long as their content stays.
        self._digests: dict[Place, str] = {}

    def take(self, plan: Plan) -> Plan:
        """The same plan, of the copy. Raises MemoryError or RuntimeError (torch's) where the host's memory does not suffice."""
        wanted = {item.place: item for item in plan.items if not item.is_object}
        devices = streams.of(item.data for item in wanted.values())
        known, self._digests = (
            self._digests,
            {},
        )  # whatever ends this early, no digest of what was there is left
        fresh = self._make_room(wanted)
        streams.wait_for(devices)
        compared = [item for item in wanted.values() if _is_comparable(item)]
        same = self._bring_up_to_date(compared, fresh)
        self._copy([item for item in wanted.values() if not _is_comparable(item)])
        streams.wait_for(devices)
        self._digests = {place: known[place] for place in same if place in known}
        items = [
            item if item.is_object else replace(item, data=self._memory[item.place])
            for item in plan.items
        ]
        return replace(plan, items=tuple(items), digests=dict(self._digests))

    def learn(self, digests: Mapping[Place, str]) -> None:
        """What the pieces of the copy were committed as."""
        self._digests = dict(digests)

    def _make_room(self, wanted: Mapping[Place, Item]) -> set[Place]:
        """Which memory is new. What is of no use any more is given back first."""
        self._memory = {
            place: memory
            for place, memory in self._memory.items()
            if place in wanted and _fits(memory, wanted[place])
        }
        fresh = {
            place: _allocate(item) for place, item in wanted.items() if place not in self._memory
        }
        self._memory.update(fresh)
        return set(fresh)

    def _bring_up_to_date(self, items: Sequence[Item], fresh: set[Place]) -> set[Place]:
        """Which pieces were compared and did not differ: of no others is anything known, objects among them."""
        sources = [(piece, item.place in fresh) for item in items for piece in pieces(item)]
        targets = [
            piece
            for item in items
            for piece in pieces(replace(item, data=self._memory[item.place]))
        ]
        with ThreadPoolExecutor(hashing_threads(), thread_name_prefix="provision-snapshot") as pool:
            same = pool.map(
                lambda pair: _bring_up_to_date(*pair[0], target=pair[1]), zip(sources, targets)
            )
            return {piece.place for (piece, _), is_same in zip(sources, same) if is_same}

    def _copy(self, items: Sequence[Item]) -> None:
        """Without a look at what was there."""
        import torch

        with torch.no_grad():
            for item in items:
                self._memory[item.place].copy_(item.data, non_blocking=True)


def _is_comparable(item: Item) -> bool:
    return is_plain(item.data) and item.bytes >= COMPARED


def _fits(memory: torch.Tensor, item: Item) -> bool:
    is_alike: bool = memory.shape == item.data.shape and memory.dtype == item.data.dtype
    return is_alike and memory.is_pinned() == bool(item.data.is_cuda)


def _allocate(item: Item) -> torch.Tensor:
    """Pinned where a GPU is to write it: only then do its copies run beside each other and at the bus's rate. It is written again
    outside of the caller's modes: it must be neither on its default device nor an inference tensor."""
    import torch

    with torch.inference_mode(False):
        return torch.empty(
            item.data.shape, dtype=item.data.dtype, device="cpu", pin_memory=item.data.is_cuda
        )


def _bring_up_to_date(source: Item, is_fresh: bool, *, target: Item) -> bool:
    """Whether the copy was equal. Every byte is compared or copied, hardly one of them both."""
    new, held, length = source.data.data_ptr(), target.data.data_ptr(), source.bytes
    begin = 0 if is_fresh else first_difference(new, held, length)
    if begin < length:
        ctypes.memmove(held + begin, new + begin, length - begin)
    return begin >= length
