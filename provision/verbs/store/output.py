"""What `provision store` prints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from provision.cli.console import table, wrap_line
from provision.cli.ship_output import NodeSets, advice_lines, folded_lines
from provision_runtime.report.text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provision.verbs.store.store import StoreReport
    from provision_runtime.node.results import RemovedEnvironments, StoreContents, StoreLog

STATES = {"unmounted": "not mounted", "installed": "inactive"}


def list_lines(report: StoreReport[StoreContents], width: int | None) -> list[str]:
    """A row for each environment in one state; nodes last, since they are many."""
    from provision.adapters.clustershell import fold

    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for node, stored in report.nodes.items():
        for row in stored["environments"]:
            size = format_bytes(row["image_bytes"] + row["tree_bytes"])
            kind = (row["key"], STATES.get(row["state"], row["state"]), size)
            group = groups.setdefault(kind, {"nodes": [], "read": 0.0, "used": False})
            group["nodes"].append(node)
            group["read"] = max(group["read"], row["last_read"])
            group["used"] |= bool(row["processes"])
    rows = []
    for kind, group in sorted(groups.items()):
        last_use = "now" if group["used"] else _day(group["read"])
        rows.append((*kind, last_use, fold(group["nodes"])))
    head = ("environment", "state", "size", "last use", "nodes")
    lines = table(rows, head, width=width).splitlines() if rows else []
    empty = [node for node, stored in report.nodes.items() if not stored["environments"]]
    if empty:
        lines.append(f"nothing is stored on {fold(empty)}")
    return [*lines, *_failure_lines(report.failures, width)]


def disk_lines(report: StoreReport[StoreContents], width: int | None) -> list[str]:
    from provision.cluster.folding import fold_equal

    kinds = {}
    for node, stored in report.nodes.items():
        environments = stored["environments"]
        sizes = (
            sum(row["image_bytes"] for row in environments),
            sum(row["tree_bytes"] for row in environments),
            stored["unfinished_bytes"],
            stored["free_bytes"],
            stored["total_bytes"],
        )
        kinds[node] = tuple(map(format_bytes, sizes))
    rows = [(*cells, nodes) for nodes, cells in fold_equal(kinds)]
    head = ("images", "unpacked", "unfinished", "free", "of", "nodes")
    lines = table(rows, head, width=width).splitlines() if rows else []
    return [*lines, *_failure_lines(report.failures, width)]


def log_lines(report: StoreReport[StoreLog], width: int | None) -> list[str]:
    """The events of all nodes by time; what one run did on several nodes is one line."""
    from provision.adapters.clustershell import fold

    nodes_of: dict[tuple[str, ...], list[str]] = {}
    times: dict[tuple[str, ...], float] = {}
    for node, log in report.nodes.items():
        for event in log["events"]:
            subject = str(event.get("key") or event.get("name") or "")
            who = str(event.get("by") or "an unnamed user")
            if event.get("client"):
                who += f" from {event['client']}"
            kind = (str(event.get("run")), str(event["event"]), subject, who)
            nodes_of.setdefault(kind, []).append(node)
            times.setdefault(kind, event["at"])
    lines = []
    for event_kind, at in sorted(times.items(), key=lambda item: item[1]):
        _, event_name, subject, who = event_kind
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        nodes = fold(sorted(set(nodes_of[event_kind])))
        what = f"{event_name} {subject}".strip()
        lines += wrap_line(f"{clock}  {what} on {nodes}, by {who}", width, 21)
    return [*(lines or ["no events"]), *_failure_lines(report.failures, width)]


def remove_lines(
    report: StoreReport[RemovedEnvironments], dry_run: bool, width: int | None
) -> list[str]:
    verb = "would be removed" if dry_run else "removed"
    texts = {}
    for node, result in report.nodes.items():
        parts = [f"{verb}: {', '.join(result['removed'])}"] if result["removed"] else []
        parts += [f"{key} stays: {why}" for key, why in sorted(result["retained"].items())]
        texts[node] = "; ".join(parts) or "it has no such environment"
    sets = NodeSets()
    lines = folded_lines(texts, width, sets)
    return [*lines, *sets.lines(), *_failure_lines(report.failures, width)]


def report_json(report: StoreReport[Any]) -> dict[str, object]:
    return {"nodes": report.nodes, "failures": report.failures}


def _failure_lines(failures: Mapping[str, Any], width: int | None) -> list[str]:
    texts = {name: f"{failure.reason}: {failure.message}" for name, failure in failures.items()}
    sets = NodeSets()
    lines = folded_lines(texts, width, sets)
    for line in advice_lines(failures.values()):
        lines += wrap_line(line, width)
    return [*lines, *sets.lines()]


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at)) if at else "-"
