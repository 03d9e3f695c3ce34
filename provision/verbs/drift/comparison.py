"""Facts of many nodes compared: what the majority has, and which nodes deviate. Pure.

A fact without a majority (two nodes, two values) has no outliers: all values are listed. A node
whose fact could not be read is *unknown*, which is never the same.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from provision.cluster.folding import majority
from provision_runtime.report.text import format_bytes

Value = str | float | None
Key = TypeVar("Key", str, tuple[str, bool])
NodeVerdict = Literal["same", "drift", "unknown"]
Unit = Literal["", "bytes", "seconds", "digest"]
Basis = Literal["majority", "expectation", "none"]

SETTING, DISTRIBUTION = "setting:", "distribution:"
CLOCK, FILES = "clock", "files"
# The fact that names the environment itself.
INSTALLED = "environment"
NOT_INSTALLED = "not installed"
# Two clocks that agree by NTP differ by less. Logs and tokens of jobs are confused from about a second on.
CLOCK_TOLERANCE_S = 1.0
# Two nodes of one model differ by some megabytes that firmware and kernel reserve.
MEMORY_TOLERANCE = 0.01
DIGEST_DIGITS = 12
# Clocks that are off by as much, in seconds and in one direction, are one deviation.
CLOCK_BUCKETS = (10.0, 60.0, 3600.0, 86400.0)


@dataclass(frozen=True, kw_only=True)
class FactDefinition:
    """A fact that is compared.

    absent: the text for a node that has no such thing. unit: of a number; a digest is a text of
    which the first digits are shown. tolerance: how far a number may be from the median of the
    nodes; relative: as a fraction of the median. is_required: a node without it deviates, even if
    most nodes lack it.
    """

    name: str
    title: str
    group: str
    absent: str = "none"
    unit: Unit = ""
    tolerance: float = 0.0
    relative: bool = False
    is_required: bool = False


ENVIRONMENT, GPU, NETWORK, SYSTEM, LIMITS, SETTINGS = (
    "environment",
    "GPUs and NCCL",
    "network",
    "system",
    "limits of a login",
    "settings of NCCL",
)
DISTRIBUTIONS = "distributions"


def _facts(group: str, titles: Mapping[str, str]) -> list[FactDefinition]:
    return [FactDefinition(name=name, title=titles[name], group=group) for name in titles]


# In the order in which they are shown.
DEFINITIONS: tuple[FactDefinition, ...] = (
    FactDefinition(
        name=INSTALLED,
        title="environment",
        group=ENVIRONMENT,
        absent=NOT_INSTALLED,
        is_required=True,
    ),
    FactDefinition(
        name="lock", title="lock", group=ENVIRONMENT, absent="not recorded", unit="digest"
    ),
    FactDefinition(name=FILES, title="all files", group=ENVIRONMENT, unit="digest"),
    FactDefinition(name="mounted_as", title="mounted as", group=ENVIRONMENT),
    *_facts(
        GPU,
        {
            "driver": "driver",
            "gpus": "GPUs",
            "vbios": "VBIOS",
            "iommu": "IOMMU of GPUs",
            "nccl": "NCCL",
            "host_nccl": "the host's NCCL",
            "aws_ofi_nccl": "aws-ofi-nccl",
            "nccl_rdma_sharp": "NCCL RDMA SHARP",
            "other_plugins": "other plug-ins",
        },
    ),
    *_facts(
        NETWORK,
        {
            "sharp": "SHARP",
            "libfabric": "libfabric",
            "rdma_core": "rdma-core",
            "kernel_modules": "kernel modules",
            "adapters": "RDMA adapters",
            "ports": "RDMA ports",
        },
    ),
    *_facts(
        SYSTEM,
        {
            "arch": "architecture",
            "os": "system",
            "kernel": "kernel",
            "glibc": "glibc",
            "cpus": "CPUs",
        },
    ),
    FactDefinition(
        name="memory",
        title="memory",
        group=SYSTEM,
        unit="bytes",
        tolerance=MEMORY_TOLERANCE,
        relative=True,
    ),
    FactDefinition(name="governor", title="CPU governor", group=SYSTEM),
    FactDefinition(name="huge_pages", title="huge pages", group=SYSTEM),
    FactDefinition(
        name=CLOCK, title="clock", group=SYSTEM, unit="seconds", tolerance=CLOCK_TOLERANCE_S
    ),
    *_facts(
        LIMITS,
        {
            "open_files": "open files",
            "processes": "processes",
            "locked_memory": "locked memory, KiB",
            "stack": "stack, KiB",
        },
    ),
    FactDefinition(
        name="shared_memory",
        title="/dev/shm",
        group=LIMITS,
        unit="bytes",
        tolerance=MEMORY_TOLERANCE,
        relative=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class ObservedNode:
    """What one node has. unread: the reason for each fact that could not be read."""

    values: dict[str, Value]
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExpectedNode:
    """What nodes must have, by fact, whatever their majority has. source: the file that says so."""

    source: str
    exact: Mapping[str, Value] = field(default_factory=dict)
    minimum: Mapping[str, str] = field(default_factory=dict)

    @property
    def names_distributions(self) -> bool:
        return any(name.startswith(DISTRIBUTION) for name in self.exact)


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A value that some nodes have and should not. is_below: less than the expected minimum."""

    value: str
    nodes: tuple[str, ...]
    is_below: bool = False


@dataclass(frozen=True, kw_only=True)
class ComparedFact:
    """One fact over all nodes that replied.

    reference: the text of what they should have; None if there is no majority. basis: where the
    reference comes from. minimum: what they must have at least. deviations: those of most nodes
    first. unread: the reasons why the fact could not be read, with their nodes.
    """

    name: str
    title: str
    group: str
    reference: str | None
    basis: Basis
    minimum: str | None
    agreeing: tuple[str, ...]
    deviations: tuple[Deviation, ...]
    unread: tuple[tuple[str, tuple[str, ...]], ...]


def compare(
    nodes: Mapping[str, ObservedNode], expectation: ExpectedNode | None = None
) -> list[ComparedFact]:
    """Every fact that any node has or any expectation names."""
    names: dict[str, None] = {definition.name: None for definition in DEFINITIONS}
    for facts in nodes.values():
        names.update(dict.fromkeys(sorted({*facts.values, *facts.unread})))
    compared = []
    for definition in _definitions(names):
        fact = _compare_fact(definition, nodes, expectation)
        if fact is not None:
            compared.append(fact)
    return compared


def _definitions(names: Mapping[str, None]) -> list[FactDefinition]:
    """Those of the table, then settings, then distributions, each by name."""
    defined = {definition.name for definition in DEFINITIONS}
    definitions = list(DEFINITIONS)
    for prefix, group, absent in (
        (SETTING, SETTINGS, "not set"),
        (DISTRIBUTION, DISTRIBUTIONS, NOT_INSTALLED),
    ):
        for name in sorted(names):
            if name.startswith(prefix) and name not in defined:
                definitions.append(
                    FactDefinition(
                        name=name,
                        title=name.removeprefix(prefix).strip("()"),  # of `(other files)`
                        group=group,
                        absent=absent,
                    )
                )
    return definitions


def _compare_fact(
    definition: FactDefinition,
    nodes: Mapping[str, ObservedNode],
    expectation: ExpectedNode | None,
) -> ComparedFact | None:
    """None if no node has it, or failed to read it."""
    name = definition.name
    values: dict[str, Value] = {}
    unread: dict[str, str] = {}
    for node, facts in nodes.items():
        if name in facts.unread:
            unread[node] = facts.unread[name]
        elif name in facts.values:
            values[node] = facts.values[name]
        elif name.startswith(SETTING):
            values[node] = None  # a node lists only the settings that it has
    if not values and not unread:
        return None
    expected = expectation.exact if expectation else {}
    minimum = expectation.minimum.get(name) if expectation else None
    basis, reference = _majority_reference(definition, values)
    if name in expected:
        basis, reference = "expectation", expected[name]
    agreeing: list[str] = []
    deviating: dict[tuple[str, bool], list[str]] = {}
    texts = _texts(definition, values, reference)
    for node, value in values.items():
        agrees = basis != "none" and _agrees(definition, value, reference)
        release = _release(value) if isinstance(value, str) else ()
        is_below = minimum is not None and release < _release(minimum)
        if agrees and not is_below:
            agreeing.append(node)
        else:
            deviating.setdefault((texts[node], is_below), []).append(node)
    deviations = [
        Deviation(value=text, nodes=tuple(names), is_below=is_below)
        for (text, is_below), names in _largest_first(deviating)
    ]
    reasons: dict[str, list[str]] = {}
    for node, reason in unread.items():
        reasons.setdefault(reason, []).append(node)
    return ComparedFact(
        name=name,
        title=definition.title,
        group=definition.group,
        reference=None if basis == "none" else format_value(definition, reference),
        basis=basis,
        minimum=minimum,
        agreeing=tuple(agreeing),
        deviations=tuple(deviations),
        unread=tuple((reason, tuple(names)) for reason, names in _largest_first(reasons)),
    )


def _majority_reference(
    definition: FactDefinition, values: Mapping[str, Value]
) -> tuple[Basis, Value]:
    numbers = [value for value in values.values() if isinstance(value, int | float)]
    if 2 * len(numbers) > len(values):
        return "majority", statistics.median(numbers)
    # None is a value too: most nodes may lack what others have.
    counted = majority(
        {
            node: (value,)
            for node, value in values.items()
            if value is not None or not definition.is_required
        }
    )
    if counted is None:
        return "none", None
    return "majority", counted[0]


def _agrees(definition: FactDefinition, value: Value, reference: Value) -> bool:
    if not isinstance(value, int | float) or not isinstance(reference, int | float):
        return value == reference
    tolerance = definition.tolerance * (abs(reference) if definition.relative else 1.0)
    return abs(value - reference) <= tolerance


def _texts(
    definition: FactDefinition, values: Mapping[str, Value], reference: Value
) -> dict[str, str]:
    """The values as people read them. Of clocks that are off by nearly as much, the farthest stands
    for all: else each node's would be a line of its own."""
    texts = {node: format_value(definition, value) for node, value in values.items()}
    if definition.unit != "seconds":
        return texts
    buckets: dict[tuple[bool, int], list[tuple[float, str]]] = {}
    for node, value in values.items():
        if isinstance(value, float | int) and isinstance(reference, float | int):
            offset = value - reference
            if abs(offset) <= definition.tolerance:
                continue
            bucket = (offset > 0, bisect(CLOCK_BUCKETS, abs(offset)))
            buckets.setdefault(bucket, []).append((value, node))
    for (is_ahead, _), clocks in buckets.items():
        farthest, _ = max(clocks) if is_ahead else min(clocks)
        text = format_value(definition, farthest)
        for _, node in clocks:
            texts[node] = text if len(clocks) == 1 else f"up to {text}"
    return texts


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _largest_first(groups: Mapping[Key, list[str]]) -> list[tuple[Key, list[str]]]:
    return sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))


def format_value(definition: FactDefinition, value: Value) -> str:
    """A value as people read it."""
    if value is None:
        return definition.absent
    if definition.unit == "digest":
        return str(value)[:DIGEST_DIGITS]
    if definition.unit == "bytes" and isinstance(value, int | float):
        return format_bytes(value)
    if definition.unit == "seconds" and isinstance(value, int | float):
        return f"{value:+.1f} s"
    return str(value)


def clock_offsets(intervals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Each node's clock against ours in seconds, from the interval in which it must be.

    An interval is as long as login and reply took, which is seconds on a busy machine. So the
    clocks are taken to agree on the offset that fits most intervals (Marzullo's algorithm, as NTP
    selects its servers), and a node that excludes it has the nearest offset that is possible.
    """
    if not intervals:
        return {}
    common = _most_common_point(list(intervals.values()))
    return {node: min(max(common, low), high) for node, (low, high) in intervals.items()}


def _most_common_point(intervals: Sequence[tuple[float, float]]) -> float:
    """The point within most intervals: zero if that is such a point, else the nearest one to it."""
    edges = [(low, -1) for low, _ in intervals] + [(high, 1) for _, high in intervals]
    depth = deepest = 0
    best = (0.0, 0.0)
    ordered = sorted(edges)
    for index, (point, kind) in enumerate(ordered):
        depth -= kind
        if kind < 0 and depth > deepest:
            deepest = depth
            # Up to the next edge no interval begins or ends.
            best = (point, ordered[index + 1][0])
    return min(max(0.0, best[0]), best[1])
