"""What `provision store` prints."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from provision.adapters.clustershell import fold
from provision.cli.console import table, wrap_line
from provision.cli.node_sets import NodeSets, folded_lines
from provision.cluster.folding import fold_equal
from provision_runtime.report.text import format_bytes

if TYPE_CHECKING:
    from provision_runtime.node.results import RemovedEnvironments, StoreContents, StoreLog

SIZES: tuple[Literal["image_bytes", "tree_bytes"], ...] = ("image_bytes", "tree_bytes")
STATES = {"unmounted": "not mounted", "installed": "inactive"}


def list_lines(nodes: Mapping[str, StoreContents], width: int | None) -> list[str]:
    """A row for each environment in one state; nodes last, since they are many."""
    used: dict[tuple[str, str, str], dict[str, str]] = {}
    for node, stored in nodes.items():
        for row in stored["environments"]:
            size = format_bytes(row["image_bytes"] + row["tree_bytes"])
            kind = (row["key"], STATES.get(row["state"], row["state"]), size)
            day = time.strftime("%Y-%m-%d", time.localtime(row["last_read"]))
            last_use = day if row["last_read"] else "-"
            used.setdefault(kind, {})[node] = "now" if row["processes"] else last_use
    # "now" sorts after days, and those after "-".
    rows = [(*kind, max(uses.values()), fold(uses)) for kind, uses in sorted(used.items())]
    lines = _table(rows, ("environment", "state", "size", "last use", "nodes"), width)
    empty = [node for node, stored in nodes.items() if not stored["environments"]]
    return [*lines, f"nothing is stored on {fold(empty)}"] if empty else lines


def disk_lines(nodes: Mapping[str, StoreContents], width: int | None) -> list[str]:
    kinds = {}
    for node, stored in nodes.items():
        sizes = [sum(row[kind] for row in stored["environments"]) for kind in SIZES]
        sizes += [stored["unfinished_bytes"], stored["free_bytes"], stored["total_bytes"]]
        kinds[node] = tuple(map(format_bytes, sizes))
    rows = [(*cells, folded) for folded, cells in fold_equal(kinds)]
    return _table(rows, ("images", "unpacked", "unfinished", "free", "of", "nodes"), width)


def log_lines(nodes: Mapping[str, StoreLog], width: int | None) -> list[str]:
    """The events of all nodes by time; what one run did on several nodes is one line."""
    runs: dict[tuple[str, str, str], dict[str, float]] = {}
    for node, log in nodes.items():
        for event in log["events"]:
            who = str(event.get("by") or "an unnamed user")
            if event.get("client"):
                who += f" from {event['client']}"
            what = f"{event['event']} {event.get('key') or event.get('name') or ''}".strip()
            runs.setdefault((str(event.get("run")), what, who), {}).setdefault(node, event["at"])
    lines = []
    for (_, what, who), times in sorted(runs.items(), key=lambda item: min(item[1].values())):
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(times.values())))
        lines += wrap_line(f"{clock}  {what} on {fold(times)}, by {who}", width, 21)
    return lines or ["no events"]


def remove_lines(
    dry_run: bool, nodes: Mapping[str, RemovedEnvironments], width: int | None
) -> list[str]:
    verb = "would be removed" if dry_run else "removed"
    texts = {}
    for node, result in nodes.items():
        parts = [f"{verb}: {', '.join(result['removed'])}"] if result["removed"] else []
        parts += [f"{key} stays: {why}" for key, why in sorted(result["retained"].items())]
        texts[node] = "; ".join(parts) or "it has no such environment"
    sets = NodeSets()
    return [*folded_lines(texts, width, sets), *sets.lines()]


def _table(rows: Sequence[Sequence[str]], head: Sequence[str], width: int | None) -> list[str]:
    return table(rows, head, width=width).splitlines() if rows else []
