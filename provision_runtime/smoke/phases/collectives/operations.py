"""The collectives: for one row of the plan its buffers, the call that is timed, and its expected
result.

`inputs` is what this rank contributes, and is never changed; calls work on `work`, or read `inputs`
and write `work`. So the inputs can still be checked when a result is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import test_values
from . import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

ROOT = 0
# torch's messages for a collective or type that a backend lacks (Gloo, 1.13 to 2.13).
REFUSAL = re.compile(
    r"not support|no support|unsupported|not implemented|invalid scalar type"
    r"|no attribute|not defined",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Participants:
    """This rank, the number of ranks, and the backend: Gloo and NCCL offer the same collectives
    through different calls of torch."""

    rank: int
    size: int
    backend: str


@dataclass(frozen=True)
class ExpectedPart:
    """A part of the result, and the ranks whose values add up to it, from index `start` on."""

    part: torch.Tensor
    ranks: Sequence[int]
    start: int = 0


@dataclass(frozen=True)
class Operation:
    """`inputs` are this row's elements. `prepare` resets the work buffer before a call, so that the
    result of an earlier one is not taken for this one's."""

    inputs: torch.Tensor
    prepare: Callable[[], Any]
    call: Callable[[], Any]
    expected: Sequence[ExpectedPart]


class Buffers:
    """Two arrays of the largest size that a type needs; every size uses their beginnings."""

    def __init__(self, rows: Sequence[plan.Row], dtype: str, device: str) -> None:
        import torch

        largest_bytes = max(row.bytes for row in rows if row.dtype == dtype)
        elements = largest_bytes // plan.ITEM_BYTES[dtype]
        self.inputs = torch.empty(elements, dtype=getattr(torch, dtype), device=device)
        self.work = torch.empty_like(self.inputs)


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that the backend lacks the collective, and not that the call failed."""
    if not isinstance(error, (RuntimeError, AttributeError, NotImplementedError, ValueError)):
        return False
    return REFUSAL.search(str(error)) is not None


def build(row: plan.Row, buffers: Buffers, participants: Participants) -> Operation:
    return BUILDERS[row.collective](row, buffers, participants)


def count_wrong(operation: Operation, keys: Sequence[int], largest: int) -> tuple[int, Any]:
    """How many elements of the result are wrong, and the first of them."""
    count, first_wrong = 0, None
    for expected in operation.expected:
        part_keys = [keys[rank] for rank in expected.ranks]
        part_count, first = test_values.count_wrong(
            expected.part, part_keys, largest, expected.start
        )
        count += part_count
        first_wrong = first_wrong or first
    return count, first_wrong


def _all_reduce(row: plan.Row, buffers: Buffers, participants: Participants) -> Operation:
    from torch import distributed

    inputs, work = buffers.inputs[: row.count], buffers.work[: row.count]
    expected = [ExpectedPart(work, range(participants.size))]
    prepare, call = partial(work.copy_, inputs), partial(distributed.all_reduce, work)
    return Operation(inputs, prepare, call, expected)


def _broadcast(row: plan.Row, buffers: Buffers, participants: Participants) -> Operation:
    from torch import distributed

    inputs, work = buffers.inputs[: row.count], buffers.work[: row.count]
    expected = [ExpectedPart(work, [ROOT])]
    prepare, call = partial(work.copy_, inputs), partial(distributed.broadcast, work, ROOT)
    return Operation(inputs, prepare, call, expected)


def _all_gather(row: plan.Row, buffers: Buffers, participants: Participants) -> Operation:
    from torch import distributed

    inputs = buffers.inputs[: row.count]
    work = buffers.work[: row.count * participants.size]
    shares = [_share(work, row, rank) for rank in range(participants.size)]
    expected = [ExpectedPart(share, [rank]) for rank, share in enumerate(shares)]
    # Gloo has all_gather into one array only in later releases, the one into a list in all.
    if participants.backend == "nccl":
        call = partial(distributed.all_gather_into_tensor, work, inputs)
    else:
        call = partial(distributed.all_gather, shares, inputs)
    return Operation(inputs, partial(work.fill_, -1), call, expected)


def _reduce_scatter(row: plan.Row, buffers: Buffers, participants: Participants) -> Operation:
    from torch import distributed

    elements = row.count * participants.size
    inputs = buffers.inputs[:elements]
    share = buffers.work[: row.count]
    call = partial(distributed.reduce_scatter_tensor, share, inputs)
    start = participants.rank * row.count
    expected = [ExpectedPart(share, range(participants.size), start)]
    return Operation(inputs, partial(share.fill_, -1), call, expected)


def _all_to_all(row: plan.Row, buffers: Buffers, participants: Participants) -> Operation:
    from torch import distributed

    elements = row.count * participants.size
    inputs, work = buffers.inputs[:elements], buffers.work[:elements]
    start = participants.rank * row.count
    expected = [
        ExpectedPart(_share(work, row, rank), [rank], start) for rank in range(participants.size)
    ]
    call = partial(distributed.all_to_all_single, work, inputs)
    return Operation(inputs, partial(work.fill_, -1), call, expected)


def _send_recv(row: plan.Row, buffers: Buffers, participants: Participants) -> Operation:
    """Around the ring: to the next rank, from the previous one."""
    inputs, work = buffers.inputs[: row.count], buffers.work[: row.count]
    next_rank = (participants.rank + 1) % participants.size
    previous_rank = (participants.rank - 1) % participants.size
    call = partial(_send_and_receive, inputs, work, next_rank, previous_rank)
    expected = [ExpectedPart(work, [previous_rank])]
    return Operation(inputs, partial(work.fill_, -1), call, expected)


def _send_and_receive(
    inputs: torch.Tensor, work: torch.Tensor, next_rank: int, previous_rank: int
) -> None:
    from torch import distributed

    operations = [
        distributed.P2POp(distributed.isend, inputs, next_rank),
        distributed.P2POp(distributed.irecv, work, previous_rank),
    ]
    for request in distributed.batch_isend_irecv(operations):
        request.wait()


def _share(array: torch.Tensor, row: plan.Row, rank: int) -> torch.Tensor:
    return array[rank * row.count : (rank + 1) * row.count]


BUILDERS: dict[str, Callable[[plan.Row, Buffers, Participants], Operation]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}
