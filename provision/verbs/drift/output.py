"""What is printed of nodes that were compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from provision.cli.console import table, wrap_line
from provision.cli.node_sets import NodeSets
from provision.cluster.inventory import NodeSelection
from provision.core.documents import DriftDeviation, DriftFact, DriftRecord
from provision.verbs.drift.comparison import (
    DISTRIBUTION,
    DISTRIBUTIONS,
    FILES,
    INSTALLED,
    NOT_INSTALLED,
)
from provision_runtime.report.text import format_count

# More distributions than this are counted instead of listed.
LISTED_DISTRIBUTIONS = 8
LINE_WIDTH = 80


def drift_lines(
    record: DriftRecord, selection: NodeSelection, *, verbose: bool, width: int | None = None
) -> list[str]:
    """Who deviates in what, who did not reply, and what to know. selection: the nodes. verbose: also
    what all have. width: of the terminal."""
    sets = NodeSets()
    sentences = [f"{record['name']} on {record['on']}: {_summary(record['counts'])}"]
    deviations = _deviation_lines(record, sets)
    for fact in record["facts"]:
        for row in fact["unread"]:
            nodes = sets.short(row["nodes"])
            deviations.append(f"{nodes}: {fact['title']} is unknown: {row['reason']}")
    if deviations:
        sentences += ["", *deviations]
    for failure in record["failures"]:
        nodes = sets.short(failure["nodes"])
        sentences += [
            "",
            f"{nodes}: no answer, {failure['reason']}: {failure['meaning']}",
            f"  {failure['message']}",
            f"  {failure['advice']}",
        ]
    if sets.lines():
        sentences += ["", *sets.lines()]
    lines = []
    for sentence in sentences:
        lines += wrap_line(sentence, width)
    if verbose:
        rows = [
            (fact["title"], str(fact["count"]), fact["reference"])
            for fact in record["facts"]
            if fact["reference"] is not None and fact["count"]
        ]
        lines += ["", *table(rows, ("fact", "nodes", "value"), width=width).splitlines()]
    # Commands stay whole, to be copied.
    lines += repair_commands(record, selection)
    for note in ["", *record["notes"]] if record["notes"] else []:
        lines += wrap_line(note, width)
    return lines


def repair_commands(record: DriftRecord, selection: NodeSelection) -> list[str]:
    """The commands that bring what most nodes have to those with another environment, none, or other
    files; nothing where nobody knows what is right, or no store has it."""
    environments = [fact for fact in record["facts"] if fact["name"] == INSTALLED]
    reference = environments[0]["reference"] if environments else None
    is_in_store = PurePosixPath(record["path"]).name == record["name"]
    if reference is None or not is_in_store:
        return []
    deviating, changed = [], []
    for node in record["nodes"]:
        differing = node.get("differs", {})
        if any(name in (INSTALLED, FILES) or name.startswith(DISTRIBUTION) for name in differing):
            deviating.append(node["name"])
            if INSTALLED not in differing:
                changed.append(node["name"])
    if not deviating:
        return []
    lines = ["", f"Where the pack {reference} is, this gives them what the others have:"]
    if changed:
        options = selection.options(changed)
        lines.append(f"  provision store remove {reference} --force {options}")
    return [*lines, f"  provision ship {record['name']} {selection.options(deviating)}"]


def _summary(counts: Mapping[str, int]) -> str:
    total = format_count(counts["nodes"], "node")
    parts = []
    if counts["drift"]:
        verb = "deviates" if counts["drift"] == 1 else "deviate"
        parts.append(f"{counts['drift']} of {total} {verb}")
    if counts["unknown"]:
        parts.append(f"{counts['unknown']} unknown")
    if not parts and counts["nodes"] == 1:
        return f"{total}, which no other is compared with"
    if not parts:
        return f"{total}, all the same"
    return ", ".join(parts) + f", {counts['same']} the same"


def _deviation_lines(record: DriftRecord, sets: NodeSets) -> list[str]:
    lines = []
    distributions: dict[str, list[tuple[DriftFact, DriftDeviation]]] = {}
    for fact in record["facts"]:
        for deviation in fact["deviations"]:
            if fact["group"] == DISTRIBUTIONS:
                distributions.setdefault(deviation["nodes"], []).append((fact, deviation))
            else:
                lines += _deviation(fact, deviation, sets)
    for nodes, rows in distributions.items():
        if len(rows) > LISTED_DISTRIBUTIONS:
            names = ", ".join(fact["title"] for fact, _ in rows[:LISTED_DISTRIBUTIONS])
            lines.append(
                f"{sets.short(nodes)}: {len(rows)} distributions differ: {names}, ... (--json lists all)"
            )
            continue
        for fact, deviation in rows:
            lines += _deviation(fact, deviation, sets)
    return lines


def _deviation(fact: DriftFact, deviation: DriftDeviation, sets: NodeSets) -> list[str]:
    """What some nodes have, and what they should have: one line, or two if they are long."""
    value = f"{sets.short(deviation['nodes'])}: {fact['title']} {deviation['value']}"
    if fact["reference"] is not None:
        expected = f"on {format_count(fact['count'], 'node')}: {fact['reference']}"
    elif deviation["value"] == NOT_INSTALLED:
        return [value]
    else:
        expected = "no value has a majority"
    line = f"{value}; {expected}"
    return [line] if len(line) <= LINE_WIDTH else [value, f"    {expected}"]
