"""The plan: which collectives, types, sizes and repetitions are measured.

Pure, and the same on every rank, or the ranks would hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....dataclass import frozen
from ... import test_values
from ...bandwidth import parse_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Gloo in older releases of torch lacks bfloat16.
TYPES = {"cpu": ("float32", "float16"), "cuda": ("float32", "bfloat16", "float16")}
ALL_REDUCE = "all_reduce"
# Up to this size an operation is all latency, and cheap enough to repeat often.
LATENCY_BYTES = 256 * KIB
SIZES = {
    ("cpu", "quick"): "8 32KiB 1MiB",
    ("cpu", "default"): "8 1KiB 32KiB 256KiB 2MiB 16MiB",
    ("cpu", "full"): "8 1KiB 32KiB 256KiB 2MiB 16MiB",
    ("cuda", "quick"): "8 256KiB 16MiB 512MiB",
    ("cuda", "default"): "8 1KiB 32KiB 256KiB 1MiB 4MiB 16MiB 64MiB 256MiB 1GiB 4GiB",
    ("cuda", "full"): "8 256 1KiB 4KiB 32KiB 256KiB 1MiB 2MiB 4MiB 8MiB 16MiB 32MiB 64MiB 128MiB"
    " 256MiB 512MiB 1GiB 2GiB 4GiB",
}
# A ring of more ranks than this shows its bandwidth at a larger size only, in every profile.
LARGE_RING = 64
LARGE_RING_BYTES = 2 * GIB
# The one size at which profile default measures the 16-bit types.
SHORT_TYPE_BYTES = {"cpu": 1 * MIB, "cuda": 256 * MIB}
# The largest size as a share of the free memory; two buffers of it live at once.
MEMORY_SHARE = 0.2
# How often a call is made: to warm up, at the sizes that show latency, and at larger ones. Fewer
# times if all calls would take longer than TIMED_S seconds, or than this share of what the phase
# has left: the rest is for checks, which cannot be fewer, and for calls slower than the first.
REPEATS = {"quick": (2, 20, 5), "default": (5, 100, 20), "full": (5, 100, 20)}
FEWEST = 3
TIMED_S = {"quick": 10.0, "default": 60.0, "full": 150.0}
TIMED_SHARE = 0.5


@frozen
class Row:
    """One line of the table, of `count` elements. `largest` is the largest test value whose sum is
    exact."""

    dtype: str
    bytes: int
    count: int
    warm_up: int
    iterations: int
    largest: int

    @property
    def name(self) -> str:
        return f"{ALL_REDUCE} {self.dtype}"


@frozen
class Scope:
    """What the plan depends on. most_bytes: the largest message that the memory allows."""

    profile: str
    device: str
    ranks: int
    most_bytes: float


def rows(scope: Scope) -> list[Row]:
    types = TYPES[scope.device][:1] if scope.profile == "quick" else TYPES[scope.device]
    warm_up, at_latency, at_bandwidth = REPEATS[scope.profile]
    return [
        Row(
            dtype,
            bytes=size,
            count=size // ITEM_BYTES[dtype],
            warm_up=warm_up,
            iterations=at_latency if size <= LATENCY_BYTES else at_bandwidth,
            largest=test_values.largest(dtype, scope.ranks),
        )
        for dtype in types
        for size in _sizes(scope, dtype)
    ]


def fitted(rows: Sequence[Row], call_s: Sequence[float], budget_s: float) -> list[Row]:
    """The rows with as many repetitions as the time allows: all of them where the calls are fast.

    call_s: seconds that one call of each row takes on the slowest rank.
    """
    planned_s = sum(s * (row.warm_up + row.iterations) for row, s in zip(rows, call_s))
    if planned_s <= budget_s:
        return list(rows)
    share = budget_s / planned_s
    result = []
    for row in rows:
        # The call that was checked has warmed the row up once.
        warm_up = int(row.warm_up * share)
        iterations = max(int(row.iterations * share), FEWEST)
        result.append(replace(row, warm_up=warm_up, iterations=iterations))
    return result


def _sizes(scope: Scope, dtype: str) -> list[int]:
    profile_sizes = [parse_size(text) for text in SIZES[scope.device, scope.profile].split()]
    sizes = profile_sizes
    if scope.profile == "default" and dtype != "float32":
        sizes = [SHORT_TYPE_BYTES[scope.device]]
    elif scope.device == "cuda" and scope.ranks > LARGE_RING:
        sizes = sorted({*profile_sizes, LARGE_RING_BYTES})
    fitting = [size for size in sizes if size <= scope.most_bytes]
    # A type that is not measured at all would look correct: then at the largest size that fits.
    smaller = [size for size in profile_sizes if size <= scope.most_bytes]
    return fitting or smaller[-1:] or profile_sizes[:1]
