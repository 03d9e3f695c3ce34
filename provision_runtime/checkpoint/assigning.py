"""Which rank writes what: each item is written by one of the ranks that hold it, so that all write about as much."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from .items import OBJECT
from .manifest import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.ranks import Ranks
    from .items import Item


def own_share(items: Sequence[Item], problem: Exception | None, ranks: Ranks) -> list[Item]:
    """The items that this rank writes. What several ranks hold is written by one of them, so that all write about as much.

    Lists are exchanged only where they differ: with replicas, a digest is all that is sent.
    """
    own = [_key(item) for item in items]
    digest = hashlib.sha256(json.dumps(own).encode()).hexdigest()
    digests = meet("checkpoint/plans", ranks, digest, problem)
    everyones = (
        [own] * ranks.world_size
        if len(set(digests)) == 1
        else ranks.exchange("checkpoint/boxes", own)
    )
    writers = assign(everyones)
    return [item for item, key in zip(items, own) if writers[_place(key)] == ranks.rank]


def meet(
    name: str,
    ranks: Ranks,
    word: Any,
    problem: Exception | None,
    *,
    lost: str = "nothing was saved",
) -> list[Any]:
    """Every rank's word; raises the problem on the rank that has one, and CheckpointError on the others, which begins with `lost`."""
    said = ranks.exchange(name, [word, None if problem is None else _in_words(problem)])
    if problem is not None:
        raise problem
    for rank, (_, theirs) in enumerate(said):
        if theirs is not None:
            raise CheckpointError(f"{lost}: rank {rank}: {theirs}")
    return [theirs for theirs, _ in said]


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _key(item: Item) -> list[Any]:
    """What the others must know. An object's size may differ from rank to rank (a random state), and does not matter."""
    return [
        item.name,
        list(item.offsets),
        list(item.sizes),
        list(item.shape),
        item.dtype,
        0 if item.is_object else item.bytes,
    ]


def _place(key: Sequence[Any]) -> tuple[Any, ...]:
    return (key[0], *key[1])


def assign(everyones: Sequence[Sequence[Sequence[Any]]]) -> dict[tuple[Any, ...], int]:
    """Which rank writes each box, the same on every rank: the biggest first, to the holder with the least so far.

    Objects go to the lowest rank, as torch's planner has it. Raises CheckpointError where two ranks disagree about a tensor.
    """
    holders: dict[tuple[Any, ...], list[int]] = {}
    told: dict[tuple[Any, ...], Sequence[Any]] = {}
    shapes: dict[str, tuple[Any, int]] = {}
    for rank, keys in enumerate(everyones):
        for key in keys:
            place = _place(key)
            _refuse_difference(
                key, rank, told.setdefault(place, key), shapes.setdefault(key[0], (key[3:5], rank))
            )
            holders.setdefault(place, []).append(rank)
    load = [0] * len(everyones)
    writers = {}
    for place in sorted(holders, key=lambda place: (-told[place][5], str(place))):
        is_object = told[place][4] == OBJECT
        writers[place] = (
            holders[place][0]
            if is_object
            else min(holders[place], key=lambda rank: (load[rank], rank))
        )
        load[writers[place]] += told[place][5]
    return writers


def _refuse_difference(
    key: Sequence[Any], rank: int, first: Sequence[Any], shape: tuple[Any, int]
) -> None:
    if list(key[3:5]) != list(shape[0]):
        raise CheckpointError(
            f"{key[0]} is {key[3]} {key[4]} on rank {rank}, but {shape[0][0]} {shape[0][1]} on rank {shape[1]}: "
            "one name must be the same tensor on all ranks"
        )
    if list(key[2]) != list(first[2]):
        raise CheckpointError(
            f"{key[0]} is cut differently on rank {rank}: {key[2]} at {key[1]}, elsewhere {first[2]}"
        )
