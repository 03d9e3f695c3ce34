"""The plan: which collectives, types, sizes and repetitions are measured.

Pure, and the same on every rank, or the ranks would hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ... import test_values
from ...bandwidth import parse_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Every profile measures all_reduce; profile full also measures the optional ones.
ALL_REDUCE = "all_reduce"
OPTIONAL = ("all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
# These divide one array among the ranks: the size is that of the whole array, the count that of one
# share.
DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
SUMMED = ("all_reduce", "reduce_scatter")
NEEDS_TWO = ("send_recv",)
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
# (ranks per core, largest size): ranks that share cores run one after another, so with more
# ranks per core than this a larger message measures nothing and takes minutes.
CROWDED_LIMITS = ((16, 1 * MIB), (4, 16 * MIB))


@dataclass(frozen=True)
class Repeats:
    warm_up: int
    latency: int
    bandwidth: int


REPEATS = {"quick": Repeats(2, 20, 5), "default": Repeats(5, 100, 20), "full": Repeats(5, 100, 20)}
# On CPUs a large message takes a tenth of a second and more: fewer repetitions are enough.
LARGE_ON_CPU = 16 * MIB
FEWEST = 3


@dataclass(frozen=True)
class Row:
    """One line of the table. `count` is as nccl-tests counts: a share's elements where the array is
    divided. `largest` is the largest test value whose sum is exact."""

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
    """What the plan depends on. `crowding`: ranks per core if there are more ranks than cores,
    else 1."""

    profile: str
    device: str
    ranks: int
    most_bytes: float
    crowding: float


def candidates(scope: Scope) -> list[tuple[str, str]]:
    """Collectives and types that the backend should offer."""
    types = ["float32"] if scope.profile == "quick" else ["float32", "bfloat16", "float16"]
    pairs = [(ALL_REDUCE, dtype) for dtype in types]
    if scope.profile == "full":
        for collective in OPTIONAL:
            collective_types = types if collective in SUMMED else ["float32"]
            pairs += [(collective, dtype) for dtype in collective_types]
    return pairs


def why_unsuited(collective: str, dtype: str, ranks: int) -> str:
    """Why this cannot be tested with this number of ranks; empty if it can."""
    if collective in NEEDS_TWO and ranks == 1:
        return "not applicable to one rank"
    if not test_values.largest(dtype, _summands(collective, ranks)):
        return f"sums over {ranks} ranks are not exact in {dtype}"
    return ""


def rows(scope: Scope, pairs: list[tuple[str, str]]) -> list[Row]:
    # Small sizes that are divided among many ranks may come out as the same row.
    unique: dict[Row, None] = {}
    for collective, dtype in pairs:
        for size in _sizes(scope, dtype):
            unique[_row(scope, collective, dtype, size)] = None
    return list(unique)


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


def smallest(scope: Scope, collective: str, dtype: str) -> Row:
    """For the call that tries whether the backend offers the collective."""
    return _row(scope, collective, dtype, 8)


def _sizes(scope: Scope, dtype: str) -> list[int]:
    texts = SIZES[scope.device, scope.profile].split()
    profile_sizes = list(map(parse_size, texts))
    sizes: Sequence[int] = profile_sizes
    if scope.profile == "default" and dtype != "float32":
        sizes = (SHORT_TYPE_BYTES[scope.device],)
    elif scope.device == "cuda" and scope.ranks > LARGE_RING:
        sizes = sorted({*profile_sizes, LARGE_RING_BYTES})
    limit = scope.most_bytes
    if scope.device == "cpu":
        for ranks_per_core, size in CROWDED_LIMITS:
            if scope.crowding > ranks_per_core:
                limit = min(limit, size)
    fitting = [size for size in sizes if size <= limit]
    if fitting:
        return fitting
    # A type that is not measured at all would look correct.
    return [max((size for size in profile_sizes if size <= limit), default=min(profile_sizes))]


def _row(scope: Scope, collective: str, dtype: str, size: int) -> Row:
    item_bytes = ITEM_BYTES[dtype]
    shares = scope.ranks if collective in DIVIDED else 1
    count = max(size // (item_bytes * shares), 1)
    repeats = REPEATS[scope.profile]
    iterations = repeats.latency if size <= LATENCY_BYTES else repeats.bandwidth
    if scope.device == "cpu" and size >= LARGE_ON_CPU:
        iterations //= 2
    crowding = max(scope.crowding, 1)
    return Row(
        collective,
        dtype,
        bytes=count * item_bytes * shares,
        count=count,
        warm_up=max(int(repeats.warm_up / crowding), 1),
        iterations=max(int(iterations / crowding), FEWEST),
        largest=test_values.largest(dtype, _summands(collective, scope.ranks)),
    )


def _summands(collective: str, ranks: int) -> int:
    return ranks if collective in SUMMED else 1
