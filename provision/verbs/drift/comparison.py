"""Facts of many nodes compared: what the majority has, and which nodes deviate. Pure.

A fact without a majority (two nodes, two values) has no outliers: all values are listed. A node
whose fact could not be read is *unknown*, which is never the same.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping

from provision.adapters import clustershell
from provision.cluster.folding import fold_equal
from provision.core.documents import DriftFact, DriftNode
from provision_runtime.node.results import SETTING, DriftFacts
from provision_runtime.report.text import format_bytes

Value = str | float | None

DISTRIBUTION = "distribution:"
FILES = "files"
# The fact that names the environment itself. A node without it deviates, even if most nodes lack it.
INSTALLED = "environment"
NOT_INSTALLED = "not installed"
# Two nodes of one model differ by some megabytes that firmware and kernel reserve.
MEMORY_TOLERANCE = 0.01
DIGEST_DIGITS = 12

SETTINGS, DISTRIBUTIONS = "settings of NCCL", "distributions"
# The facts of each group, by name: their titles, in the order in which they are shown.
TITLES: Mapping[str, Mapping[str, str]] = {
    "environment": {
        INSTALLED: "environment",
        "lock": "lock",
        FILES: "all files",
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
        # Without the parentheses of `(other files)`.
        titles += [
            (group, name, name.removeprefix(prefix).strip("()"))
            for name in sorted(names)
            if name.startswith(prefix)
        ]
    compared: list[DriftFact] = []
    described: dict[str, DriftNode] = {node: {"name": node, "verdict": "same"} for node in nodes}
    for group, name, title in titles:
        if name not in names:
            continue
        values: dict[str, Value] = {}
        unread: dict[str, str] = {}
        for node, observed in nodes.items():
            entry = described[node]
            if name in observed["unread"]:
                unread[node] = entry.setdefault("unread", {})[name] = observed["unread"][name]
            elif name in observed["facts"] or group == SETTINGS:
                # A node lists only the settings that it has.
                values[node] = observed["facts"].get(name)
            else:
                entry.setdefault("without", []).append(name)
        has_majority, reference = _majority(name, values)
        absent = ABSENT.get(name) or ABSENT_OF_GROUP.get(group, "none")
        texts = {}
        for node, value in values.items():
            if not has_majority or not _agrees(value, reference):
                text = format_value(name, value, absent)
                texts[node] = described[node].setdefault("differs", {})[name] = text
        compared.append(
            {
                "name": name,
                "title": title,
                "group": group,
                "reference": format_value(name, reference, absent) if has_majority else None,
                "count": len(values) - len(texts),
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


def _agrees(value: Value, reference: Value) -> bool:
    if not isinstance(value, int | float) or not isinstance(reference, int | float):
        return value == reference
    return abs(value - reference) <= MEMORY_TOLERANCE * abs(reference)


def format_value(name: str, value: Value, absent: str = "none") -> str:
    """A value as people read it."""
    if value is None:
        return absent
    if isinstance(value, int | float):
        return format_bytes(value)
    return value[:DIGEST_DIGITS] if name in ("lock", FILES) else value
