"""The collectives themselves: for one row its buffers, the call that is timed, and what must lie where afterwards.

`given` is what this rank contributes and stays as it was filled; calls work on `scratch`, or read `given` and write
`scratch`. So what a rank sent can still be looked at when a result is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import test_values
from . import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

ROOT = 0
# What torch says of a collective or a type that a backend does not have (Gloo, 1.13 to 2.13).
REFUSAL = re.compile(
    r"not support|no support|unsupported|not implemented|invalid scalar type|no attribute|not defined",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Peers:
    """Who takes part, and over what: Gloo and NCCL offer the same collectives under different calls."""

    rank: int
    size: int
    backend: str


@dataclass(frozen=True)
class Expectation:
    """A part of the result, and the ranks whose values add up to it, from an index of theirs on."""

    part: torch.Tensor
    ranks: Sequence[int]
    start: int = 0


@dataclass(frozen=True)
class Operation:
    """`renew` makes the buffers what they are before a call; `given_count` of `given` belong to it."""

    given: torch.Tensor
    renew: Callable[[], Any]
    call: Callable[[], Any]
    result: Sequence[Expectation]
    # Whether the result may be left where it is and be the next call's input.
    in_place: bool = False
    settle: Callable[[], Any] = field(default=lambda: None)


class Buffers:
    """Two arrays of the largest size that a type needs; every size uses their beginnings."""

    def __init__(self, rows: Sequence[plan.Row], dtype: str, device: str) -> None:
        import torch

        elements = max(row.bytes for row in rows if row.dtype == dtype) // plan.ITEM_BYTES[dtype]
        self.given = torch.empty(elements, dtype=getattr(torch, dtype), device=device)
        self.scratch = torch.empty_like(self.given)


def refused(error: BaseException) -> bool:
    """Whether an error says that there is no such collective, and not that it went wrong."""
    return (
        isinstance(error, (RuntimeError, AttributeError, NotImplementedError, ValueError))
        and REFUSAL.search(str(error)) is not None
    )


def placements(collective: str) -> tuple[str, ...]:
    """nccl-tests' two: into another array, or into the one that was sent. torch offers only one of them for some."""
    return (
        ("out_of_place",)
        if collective in ("all_to_all", "send_recv")
        else ("out_of_place", "in_place")
    )


def operation(row: plan.Row, placement: str, buffers: Buffers, peers: Peers) -> Operation:
    return BUILDERS[row.collective](row, placement == "in_place", buffers, peers)


def _all_reduce(row: plan.Row, in_place: bool, buffers: Buffers, peers: Peers) -> Operation:
    from torch import distributed

    given, work = buffers.given[: row.count], buffers.scratch[: row.count]
    result = [Expectation(work, range(peers.size))]
    return Operation(
        given,
        partial(work.copy_, given),
        partial(distributed.all_reduce, work),
        result,
        in_place,
        work.zero_,
    )


def _broadcast(row: plan.Row, in_place: bool, buffers: Buffers, peers: Peers) -> Operation:
    from torch import distributed

    given, work = buffers.given[: row.count], buffers.scratch[: row.count]
    result = [Expectation(work, [ROOT])]
    return Operation(
        given,
        partial(work.copy_, given),
        partial(distributed.broadcast, work, ROOT),
        result,
        in_place,
        work.zero_,
    )


def _all_gather(row: plan.Row, in_place: bool, buffers: Buffers, peers: Peers) -> Operation:
    given, whole = buffers.given[: row.count], buffers.scratch[: row.count * peers.size]
    own = _share(whole, row, peers.rank)
    sent = own if in_place else given
    result = [Expectation(_share(whole, row, rank), [rank]) for rank in range(peers.size)]
    return Operation(
        given,
        partial(_poison, whole, own, given),
        _gathering(whole, sent, row, peers),
        result,
        in_place,
        whole.zero_,
    )


def _gathering(
    whole: torch.Tensor, sent: torch.Tensor, row: plan.Row, peers: Peers
) -> Callable[[], Any]:
    """Gloo has all_gather into one array only in later releases, the one into a list in all."""
    from torch import distributed

    if peers.backend != "nccl":
        return partial(
            distributed.all_gather, [_share(whole, row, rank) for rank in range(peers.size)], sent
        )
    return partial(distributed.all_gather_into_tensor, whole, sent)


def _reduce_scatter(row: plan.Row, in_place: bool, buffers: Buffers, peers: Peers) -> Operation:
    from torch import distributed

    elements = row.count * peers.size
    given, work = buffers.given[:elements], buffers.scratch[:elements]
    own = _share(work, row, peers.rank)
    call = partial(distributed.reduce_scatter_tensor, own, work if in_place else given)
    result = [Expectation(own, range(peers.size), peers.rank * row.count)]
    return Operation(given, partial(work.copy_, given), call, result, in_place, work.zero_)


def _all_to_all(row: plan.Row, in_place: bool, buffers: Buffers, peers: Peers) -> Operation:
    from torch import distributed

    elements = row.count * peers.size
    given, work = buffers.given[:elements], buffers.scratch[:elements]
    result = [
        Expectation(_share(work, row, rank), [rank], peers.rank * row.count)
        for rank in range(peers.size)
    ]
    return Operation(
        given, partial(work.fill_, -1), partial(distributed.all_to_all_single, work, given), result
    )


def _send_recv(row: plan.Row, in_place: bool, buffers: Buffers, peers: Peers) -> Operation:
    """Around the ring: to the next rank, from the one before."""
    given, work = buffers.given[: row.count], buffers.scratch[: row.count]
    after, before = (peers.rank + 1) % peers.size, (peers.rank - 1) % peers.size
    call = partial(_pass_on, given, work, after, before)
    return Operation(given, partial(work.fill_, -1), call, [Expectation(work, [before])])


def _pass_on(given: torch.Tensor, work: torch.Tensor, after: int, before: int) -> None:
    from torch import distributed

    both = [
        distributed.P2POp(distributed.isend, given, after),
        distributed.P2POp(distributed.irecv, work, before),
    ]
    for request in distributed.batch_isend_irecv(both):
        request.wait()


def _share(whole: torch.Tensor, row: plan.Row, rank: int) -> torch.Tensor:
    return whole[rank * row.count : (rank + 1) * row.count]


def _poison(whole: torch.Tensor, own: torch.Tensor, given: torch.Tensor) -> None:
    """A result of an earlier call must not be taken for this one's."""
    whole.fill_(-1)
    own.copy_(given)


BUILDERS: dict[str, Callable[[plan.Row, bool, Buffers, Peers], Operation]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}


def wrong(found: Operation, keys: Sequence[int], largest: int) -> tuple[int, Any]:
    """Wrong elements of the result, and the first of them."""
    count, first = 0, None
    for expected in found.result:
        bad, at = test_values.wrong(
            expected.part, [keys[rank] for rank in expected.ranks], largest, expected.start
        )
        count += bad
        first = first or at
    return count, first
