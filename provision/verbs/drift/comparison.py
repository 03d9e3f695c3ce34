"""Facts of many nodes compared: what the majority has, and which nodes deviate. Pure.

A fact without a majority (two nodes, two values) has no outliers: all values are listed. A node
whose fact could not be read is *unknown*, which is never the same.
"""

from __future__ import annotations

import statistics
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence

from provision.adapters import clustershell
from provision.cluster.folding import fold_equal
from provision.core.documents import DriftFact, DriftNode
from provision_runtime.node.results import SETTING, DriftFacts
from provision_runtime.report.text import format_bytes

Value = str | float | None

DISTRIBUTION = "distribution:"
CLOCK, FILES = "clock", "files"
# The fact that names the environment itself. A node without it deviates, even if most nodes lack it.
INSTALLED = "environment"
NOT_INSTALLED = "not installed"
# Two clocks that agree by NTP differ by less. Logs and tokens of jobs are confused from about a second on.
CLOCK_TOLERANCE_S = 1.0
# Two nodes of one model differ by some megabytes that firmware and kernel reserve.
MEMORY_TOLERANCE = 0.01
DIGEST_DIGITS = 12
# Clocks that are off by as much, in seconds and in one direction, are one deviation.
CLOCK_BUCKETS = (10.0, 60.0, 3600.0, 86400.0)

SETTINGS, DISTRIBUTIONS = "settings of NCCL", "distributions"
# The facts of each group, by name: their titles, in the order in which they are shown.
TITLES: Mapping[str, Mapping[str, str]] = {
    "environment": {
        INSTALLED: "environment",
        "lock": "lock",
        FILES: "all files",
        "mounted_as": "mounted as",
    },
    "GPUs and NCCL": {
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
    "network": {
        "sharp": "SHARP",
        "libfabric": "libfabric",
        "rdma_core": "rdma-core",
        "kernel_modules": "kernel modules",
        "adapters": "RDMA adapters",
        "ports": "RDMA ports",
    },
    "system": {
        "arch": "architecture",
        "os": "system",
        "kernel": "kernel",
        "glibc": "glibc",
        "cpus": "CPUs",
        "memory": "memory",
        "governor": "CPU governor",
        "huge_pages": "huge pages",
        CLOCK: "clock",
    },
    "limits of a login": {
        "open_files": "open files",
        "processes": "processes",
        "locked_memory": "locked memory, KiB",
        "stack": "stack, KiB",
        "shared_memory": "/dev/shm",
    },
}
# What nodes have that lack the fact, where that is not "none".
ABSENT = {INSTALLED: NOT_INSTALLED, "lock": "not recorded"}
ABSENT_OF_GROUP = {SETTINGS: "not set", DISTRIBUTIONS: NOT_INSTALLED}


def compare(nodes: Mapping[str, DriftFacts]) -> tuple[list[DriftFact], dict[str, DriftNode]]:
    """Every fact that any node has, and every node with what it has instead of the majority's."""
    titles = [(group, *row) for group, rows in TITLES.items() for row in rows.items()]
    names = {name for node in nodes.values() for name in (*node["facts"], *node["unread"])}
    for prefix, group in ((SETTING, SETTINGS), (DISTRIBUTION, DISTRIBUTIONS)):
        for name in sorted(names):
            if name.startswith(prefix):
                # Without the parentheses of `(other files)`.
                titles.append((group, name, name.removeprefix(prefix).strip("()")))
    compared: list[DriftFact] = []
    described: dict[str, DriftNode] = {node: {"name": node, "verdict": "same"} for node in nodes}
    for group, name, title in titles:
        if name not in names:
            continue
        values: dict[str, Value] = {}
        unread: dict[str, str] = {}
        for node, observed in nodes.items():
            if name in observed["unread"]:
                unread[node] = observed["unread"][name]
                described[node].setdefault("unread", {})[name] = unread[node]
            elif name in observed["facts"] or group == SETTINGS:
                # A node lists only the settings that it has.
                values[node] = observed["facts"].get(name)
            else:
                described[node].setdefault("without", []).append(name)
        has_majority, reference = _majority(name, values)
        deviating = {
            node: value
            for node, value in values.items()
            if not (has_majority and _agrees(name, value, reference))
        }
        absent = ABSENT.get(name) or ABSENT_OF_GROUP.get(group, "none")
        texts = {node: format_value(name, value, absent) for node, value in deviating.items()}
        if name == CLOCK:
            texts = _clock_texts(deviating, reference)
        for node, text in texts.items():
            described[node].setdefault("differs", {})[name] = text
        compared.append(
            {
                "name": name,
                "title": title,
                "group": group,
                "reference": format_value(name, reference, absent) if has_majority else None,
                "count": len(values) - len(deviating),
                "deviations": [
                    {"value": text, "nodes": folded, "count": clustershell.count(folded)}
                    for folded, text in fold_equal(texts)
                ],
                "unread": [
                    {"reason": reason, "nodes": folded, "count": clustershell.count(folded)}
                    for folded, reason in fold_equal(unread)
                ],
            }
        )
    for entry in described.values():
        if "differs" in entry:
            entry["verdict"] = "drift"
        elif "unread" in entry:
            entry["verdict"] = "unknown"
    return compared, described


def _majority(name: str, values: Mapping[str, Value]) -> tuple[bool, Value]:
    """Whether most nodes have one value, and which; of numbers it is the median. None is a value
    too: most nodes may lack what others have."""
    present = [value for value in values.values() if value is not None or name != INSTALLED]
    numbers = [value for value in present if isinstance(value, int | float)]
    if 2 * len(numbers) > len(present):
        return True, statistics.median(numbers)
    for value, count in Counter(present).most_common(1):
        if 2 * count > len(present):
            return True, value
    return False, None


def _agrees(name: str, value: Value, reference: Value) -> bool:
    if not isinstance(value, int | float) or not isinstance(reference, int | float):
        return value == reference
    tolerance = CLOCK_TOLERANCE_S if name == CLOCK else MEMORY_TOLERANCE * abs(reference)
    return abs(value - reference) <= tolerance


def format_value(name: str, value: Value, absent: str = "none") -> str:
    """A value as people read it."""
    if value is None:
        return absent
    if isinstance(value, int | float):
        return f"{value:+.1f} s" if name == CLOCK else format_bytes(value)
    return value[:DIGEST_DIGITS] if name in ("lock", FILES) else value


def _clock_texts(clocks: Mapping[str, Value], reference: Value) -> dict[str, str]:
    """Of clocks that are off by nearly as much, the farthest stands for all: else each node's would be
    a line of its own."""
    buckets: dict[tuple[bool, int], dict[str, float]] = {}
    for node, value in clocks.items():
        assert isinstance(value, int | float) and isinstance(reference, int | float)
        bucket = (value > reference, bisect(CLOCK_BUCKETS, abs(value - reference)))
        buckets.setdefault(bucket, {})[node] = value
    texts = {}
    for (is_ahead, _), members in buckets.items():
        farthest = max(members.values()) if is_ahead else min(members.values())
        text = format_value(CLOCK, farthest)
        texts.update(dict.fromkeys(members, text if len(members) == 1 else f"up to {text}"))
    return texts


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
