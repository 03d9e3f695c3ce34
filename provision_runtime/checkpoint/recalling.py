"""Which tensors are what they were at the last save, hardly reading them: `save(unchanged="version")`.

torch counts in-place changes of a tensor (`_version`). A tensor that has its storage, its place in it and its count still is taken to
be unchanged, if a sample of its content agrees. The count alone would not do. Tried on torch 2.3.1 and 2.13.0: it moves with in-place
operations on the tensor, its views and `detach()`, under no_grad and inference_mode too, `out=`, `torch._foreach_*`, all plain and
foreach optimizers, `load_state_dict`, `all_gather`; it does not with fused optimizers (`fused=True`), the running statistics of
BatchNorm, `.data`, numpy, DLPack, `untyped_storage()`, raw pointers, `distributed.scatter`, torch.compile of 2.3, CUDA graphs.
"""

from __future__ import annotations

import hashlib
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .items import pieces
from .serialize import memory_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from .items import Item, Place, Plan

# Of every SPACING bytes, SAMPLE are looked at: one in 64. What changes a tensor as a whole cannot hide from it.
SAMPLE = 4 << 10
SPACING = 256 << 10
# What is smaller is read: buffers, counters, statistics.
LEAST = 1 << 20
WORKERS = 4


@dataclass(frozen=True)
class Stamp:
    """storage is a StorageWeakRef: while it lives, no other storage has its address. count, sample: see the module."""

    storage: Any
    where: tuple[Any, ...]
    count: int
    sample: bytes

    def is_of_same(self, other: Stamp) -> bool:
        return (
            bool(self.storage == other.storage)
            and self.where == other.where
            and self.count == other.count
        )


class Recall:
    """What this process saved last, per box. One save at a time."""

    def __init__(self) -> None:
        self._seen: dict[Place, tuple[Stamp, dict[Place, str]]] = {}
        self._is_deceived = False

    def forget(self) -> None:
        """What was read into tensors was not counted: reading.py writes to their memory itself."""
        self._seen = {}

    def stamps(self, plan: Plan) -> dict[Place, Stamp]:
        """Taken before anything is read."""
        items = [
            item
            for item in plan.items
            if not item.is_object and item.bytes >= LEAST and item.data.is_contiguous()
        ]
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-recall") as pool:
            made = list(pool.map(_stamp, items))
        return {item.place: stamp for item, stamp in zip(items, made) if stamp}

    def digests(self, stamps: Mapping[Place, Stamp]) -> dict[Place, str]:
        """Of the pieces of what did not change. Once a sample contradicts a count, none ever: this program changes tensors unseen."""
        found: dict[Place, str] = {}
        for place, stamp in stamps.items():
            before, digests = self._seen.get(place, (None, {}))
            if before is None or not before.is_of_same(stamp):
                continue
            if before.sample != stamp.sample and not self._is_deceived:
                self._is_deceived = True
                warnings.warn(
                    f'{place[0]} changed, and its version counter did not: from now on unchanged="version" reads all',
                    stacklevel=4,
                )
            found.update(digests)
        return {} if self._is_deceived else found

    def learn(
        self, items: Sequence[Item], stamps: Mapping[Place, Stamp], digests: Mapping[Place, str]
    ) -> None:
        """What was committed."""
        held = {
            item.place: {piece.place: digests[piece.place] for piece in pieces(item)}
            for item in items
            if item.place in stamps
        }
        self._seen = {place: (stamps[place], of_pieces) for place, of_pieces in held.items()}


def _stamp(item: Item) -> Stamp | None:
    """None where nothing is counted (tensors made in inference mode)."""
    from torch.multiprocessing.reductions import StorageWeakRef

    data = item.data
    try:
        count = data._version
    except RuntimeError:
        return None
    where = (
        data.data_ptr(),
        data.storage_offset(),
        tuple(data.shape),
        tuple(data.stride()),
        data.dtype,
    )
    return Stamp(StorageWeakRef(_storage(data)), where, count, _sample(data))


def _storage(data: torch.Tensor) -> Any:
    return data.untyped_storage() if hasattr(data, "untyped_storage") else data.storage().untyped()


def _sample(data: torch.Tensor) -> bytes:
    """A digest of the beginning of every stretch of SPACING bytes."""
    import torch

    with torch.no_grad():
        flat = data.detach().reshape(-1)
        spacing, size = SPACING // data.element_size(), SAMPLE // data.element_size()
        whole = flat[: len(flat) // spacing * spacing].view(-1, spacing)[:, :size]
        picked = (
            torch.cat([whole.reshape(-1), flat[len(flat) // spacing * spacing :][:size]])
            .cpu()
            .resolve_conj()
            .resolve_neg()
        )
    return hashlib.sha256(memory_of(picked)).digest()
