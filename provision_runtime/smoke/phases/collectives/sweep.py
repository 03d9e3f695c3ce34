"""Carries the plan out on this rank: every row checked and warmed up first, then every row timed.

In nccl-tests' order: what is warm (connections, channels, kernels) must be so for all sizes before the first is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import test_values
from .. import barrier
from . import measure, operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...session import Session
    from .operations import Buffers, Operation, Peers
    from .plan import Row

# Here torch's call is the same in both placements, so one check holds for both.
SAME_CALL = ("all_reduce", "broadcast")
BESIDE, IN_PLACE = "out_of_place", "in_place"


@dataclass
class Sweep:
    session: Session
    peers: Peers
    first_all_reduce_is_due: bool = True

    def measure(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """What this rank found, row by row, in the order of the rows."""
        found: dict[Row, dict[str, Any]] = {}
        for dtype in dict.fromkeys(row.dtype for row in rows):
            mine = [row for row in rows if row.dtype == dtype]
            buffers = operations.Buffers(mine, dtype, self.session.device)
            for row in mine:
                found[row] = self._check(row, buffers)
                self._times(row, buffers, row.warm_up)
            for row in mine:
                found[row].update(self._times(row, buffers, row.iterations))
        return [found[row] for row in rows]

    def refuses(self, row: Row) -> bool:
        """Whether the backend has no such collective, or not for this type. It says so before anything is sent."""
        buffers = operations.Buffers([row], row.dtype, self.session.device)
        buffers.given.zero_()
        try:
            found = operations.operation(row, BESIDE, buffers, self.peers)
            self._enter(row)()
            found.call()
        except Exception as error:
            if not operations.refused(error):
                raise
            return True
        return False

    def _check(self, row: Row, buffers: Buffers) -> dict[str, Any]:
        """Wrong elements of the results and of what this rank sent, and the first of either."""
        placements = (
            (BESIDE,) if row.collective in SAME_CALL else operations.placements(row.collective)
        )
        own: tuple[int, Any] = (0, None)
        counts, firsts = {}, []
        for placement in placements:
            keys = [
                test_values.key(
                    self.session.options.seed, f"{row.name}/{row.bytes}/{placement}", rank
                )
                for rank in range(self.peers.size)
            ]
            found = operations.operation(row, placement, buffers, self.peers)
            self._give(found, keys, row)
            found.renew()
            self._call_checked(row, found)
            counts[placement], first = operations.wrong(found, keys, row.largest)
            firsts.append(first)
            own = max(
                own,
                test_values.wrong(found.given, [keys[self.peers.rank]], row.largest),
                key=lambda bad: bad[0],
            )
        wrong = [
            counts[BESIDE],
            counts.get(
                IN_PLACE,
                counts[BESIDE] if IN_PLACE in operations.placements(row.collective) else None,
            ),
        ]
        return {
            "wrong": wrong,
            "first": next(filter(None, firsts), None),
            "own_wrong": own[0],
            "own_first": own[1],
        }

    def _give(self, found: Operation, keys: Sequence[int], row: Row) -> None:
        test_values.fill(found.given, keys[self.peers.rank], row.largest)
        if self.session.options.fault("wrong-value", self.peers.rank):
            found.given[found.given.numel() // 2] += 1

    def _call_checked(self, row: Row, found: Operation) -> None:
        is_first = self.first_all_reduce_is_due and row.collective == "all_reduce"
        self.first_all_reduce_is_due = self.first_all_reduce_is_due and not is_first
        if is_first and self.session.options.fault("other-collective", self.peers.rank):
            self._call_another(row, found)
            return
        self._enter(row)()
        found.call()

    def _call_another(self, row: Row, found: Operation) -> None:
        """What a program does whose ranks took different branches."""
        from torch import distributed

        self.session.enter("broadcast", f"{row.count} x {row.dtype}")
        distributed.broadcast(found.result[0].part, operations.ROOT)

    def _times(self, row: Row, buffers: Buffers, repeats: int) -> dict[str, list[float]]:
        timed = {}
        for placement in operations.placements(row.collective):
            found = operations.operation(row, placement, buffers, self.peers)
            taken = self.timed(row, found, repeats)
            timed[placement] = [round(value, 2) for value in taken]
        return timed

    def timed(self, row: Row, found: Operation, repeats: int) -> list[float]:
        """One note for all calls of the series, before it begins."""
        self._enter(row, f", {repeats} times after a barrier")()
        return measure.times_us(
            found, barrier.backend_barrier(self.session), repeats, self.session.on_gpu
        )

    def _enter(self, row: Row, how: str = "") -> Callable[[], Any]:
        return partial(self.session.enter, row.collective, f"{row.count} x {row.dtype}{how}")
