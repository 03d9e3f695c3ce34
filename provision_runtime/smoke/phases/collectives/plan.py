"""What is measured: which collectives, types, sizes and repetitions. Pure; the same answer on every rank, or they would hang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import test_values

if TYPE_CHECKING:
    from collections.abc import Sequence

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ALWAYS = "all_reduce"
OTHERS = ("all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
# These divide one array among the ranks: the operation's size is that of the whole array, its count that of a share.
DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
SUMMED = ("all_reduce", "reduce_scatter")
NEEDS_TWO = ("send_recv",)
# Up to here an operation is all latency, and cheap enough to repeat.
LATENCY_BYTES = 256 * KIB
SIZES = {
    ("cpu", "quick"): (8, 32 * KIB, 1 * MIB),
    ("cpu", "default"): (8, 1 * KIB, 32 * KIB, 256 * KIB, 2 * MIB, 16 * MIB),
    ("cpu", "full"): (
        8,
        256,
        1 * KIB,
        32 * KIB,
        256 * KIB,
        1 * MIB,
        2 * MIB,
        4 * MIB,
        16 * MIB,
        64 * MIB,
    ),
    ("cuda", "quick"): (8, 256 * KIB, 16 * MIB, 512 * MIB),
    ("cuda", "default"): (
        8,
        1 * KIB,
        32 * KIB,
        256 * KIB,
        *(MIB << shift for shift in range(0, 13, 2)),
    ),
    ("cuda", "full"): (
        8,
        256,
        1 * KIB,
        4 * KIB,
        32 * KIB,
        256 * KIB,
        *(MIB << shift for shift in range(13)),
    ),
}
# One size at which the short types are tried where the whole sweep is not theirs.
TRIED_BYTES = {"cpu": 1 * MIB, "cuda": 256 * MIB}
# On CPUs the rest of a full run, nine more collectives and types, is a rehearsal: enough sizes to be right or wrong at.
REHEARSED = (8, 32 * KIB, 256 * KIB, 1 * MIB, 4 * MIB)
# Two buffers of the largest size live at once; more of the free memory than twice this is not ours to take.
MEMORY_SHARE = 0.2
# Ranks that share cores run one after another: beyond so many per core a large message says nothing and takes minutes.
CROWDED = ((16, 1 * MIB), (4, 16 * MIB))


@dataclass(frozen=True)
class Effort:
    warm_up: int
    latency: int
    bandwidth: int


EFFORT = {"quick": Effort(2, 20, 5), "default": Effort(5, 100, 20), "full": Effort(5, 100, 20)}
# On CPUs a large message takes a tenth of a second and more: fewer of them say as much.
LARGE_ON_CPU = 16 * MIB
FEWEST = 3


@dataclass(frozen=True)
class Row:
    """One line of the table. `count` is as nccl-tests counts: a share's elements where the array is divided."""

    collective: str
    dtype: str
    bytes: int
    count: int
    warm_up: int
    iterations: int
    largest: int

    @property
    def name(self) -> str:
        return f"{self.collective} {self.dtype}"


@dataclass(frozen=True)
class Scope:
    """What the plan depends on. `crowding`: ranks per core where there are more than cores, else 1."""

    profile: str
    device: str
    ranks: int
    most_bytes: float
    crowding: float


def candidates(scope: Scope) -> list[tuple[str, str]]:
    """Collectives and types to ask the backend for."""
    types = ("float32",) if scope.profile == "quick" else ("float32", "bfloat16", "float16")
    found = [(ALWAYS, dtype) for dtype in types]
    if scope.profile == "full":
        found += [
            (collective, dtype)
            for collective in OTHERS
            for dtype in types
            if collective in SUMMED or dtype == "float32"
        ]
    return found


def unsuited(collective: str, dtype: str, ranks: int) -> str:
    """Why this cannot be tested with so many ranks, if so."""
    if collective in NEEDS_TWO and ranks == 1:
        return "not applicable to one rank"
    if not test_values.largest(dtype, _summands(collective, ranks)):
        return f"sums over {ranks} ranks are not exact in {dtype}"
    return ""


def rows(scope: Scope, wanted: list[tuple[str, str]]) -> list[Row]:
    # Small sizes that are divided among many ranks may come to the same.
    return list(
        dict.fromkeys(
            _row(scope, collective, dtype, size)
            for collective, dtype in wanted
            for size in _sizes(scope, collective, dtype)
        )
    )


def _sizes(scope: Scope, collective: str, dtype: str) -> list[int]:
    sizes: Sequence[int] = SIZES[scope.device, scope.profile]
    if scope.profile == "default" and dtype != "float32":
        sizes = (TRIED_BYTES[scope.device],)
    elif _is_rehearsed(scope, collective, dtype):
        sizes = REHEARSED
    return [size for size in sizes if size <= _most(scope)] or [_largest_that_fits(scope)]


def _largest_that_fits(scope: Scope) -> int:
    """Of the sweep's sizes, for what is tried at one size only: an unmeasured type would look like a right one."""
    sizes = SIZES[scope.device, scope.profile]
    return max((size for size in sizes if size <= _most(scope)), default=min(sizes))


def _is_rehearsed(scope: Scope, collective: str, dtype: str) -> bool:
    return (
        scope.device == "cpu"
        and scope.profile == "full"
        and (collective, dtype) != (ALWAYS, "float32")
    )


def _most(scope: Scope) -> float:
    limits = [size for ranks_per_core, size in CROWDED if scope.crowding > ranks_per_core]
    return min([scope.most_bytes, *limits]) if scope.device == "cpu" else scope.most_bytes


def _row(scope: Scope, collective: str, dtype: str, size: int) -> Row:
    item = ITEM_BYTES[dtype]
    shares = scope.ranks if collective in DIVIDED else 1
    count = max(size // (item * shares), 1)
    effort = EFFORT["quick" if _is_rehearsed(scope, collective, dtype) else scope.profile]
    warm_up, iterations = _repeats(scope, effort, size)
    largest = test_values.largest(dtype, _summands(collective, scope.ranks))
    return Row(collective, dtype, count * item * shares, count, warm_up, iterations, largest)


def _summands(collective: str, ranks: int) -> int:
    return ranks if collective in SUMMED else 1


def _repeats(scope: Scope, effort: Effort, size: int) -> tuple[int, int]:
    base = effort.latency if size <= LATENCY_BYTES else effort.bandwidth
    if scope.device == "cpu" and size >= LARGE_ON_CPU:
        base //= 2
    crowding = max(scope.crowding, 1)
    return max(int(effort.warm_up / crowding), 1), max(int(base / crowding), FEWEST)


def smallest(scope: Scope, collective: str, dtype: str) -> Row:
    """To ask the backend with."""
    return _row(scope, collective, dtype, 8)
