"""What is printed of nodes that were compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.cli.console import table
from provision.cluster.comparison import DISTRIBUTIONS, NOT_INSTALLED
from provision_runtime.report.text import format_count

# More distributions than this are counted instead of listed.
LISTED_DISTRIBUTIONS = 8

Record = Mapping[str, Any]


def drift_lines(record: Record, *, verbose: bool) -> list[str]:
    """Who deviates in what, who did not answer, and what to know. verbose: also what all have."""
    lines = [f"{record['name']} on {record['on']}: {_summary(record['counts'])}"]
    deviations = [*_deviation_lines(record), *_unread_lines(record)]
    if deviations:
        lines += ["", *deviations]
    for failure in record["failures"]:
        lines += [
            "",
            f"{failure['nodes']}: no answer, {failure['reason']}: {failure['meaning']}",
            f"  {failure['message']}",
            f"  {failure['advice']}",
        ]
    if verbose:
        lines += ["", *_reference_lines(record)]
    if record["notes"]:
        lines += ["", *record["notes"]]
    return lines


def _summary(counts: Mapping[str, int]) -> str:
    total = format_count(counts["nodes"], "node")
    parts = []
    if counts["drift"]:
        parts.append(f"{counts['drift']} of {total} drift")
    if counts["unknown"]:
        parts.append(f"{counts['unknown']} unknown")
    if not parts and counts["nodes"] == 1:
        return f"{total}, which no other is compared with"
    if not parts:
        return f"{total}, all the same"
    return ", ".join(parts) + f", {counts['same']} the same"


def _deviation_lines(record: Record) -> Iterator[str]:
    explained = _nodes_with_distributions(record)
    distributions: dict[str, list[Mapping[str, Any]]] = {}
    for fact in record["facts"]:
        for deviation in fact["deviations"]:
            if fact["group"] == DISTRIBUTIONS:
                distributions.setdefault(deviation["nodes"], []).append(fact)
            elif fact["name"] != "files" or deviation["nodes"] not in explained:
                yield _deviation_line(fact, deviation)
    for nodes, facts in distributions.items():
        if len(facts) > LISTED_DISTRIBUTIONS:
            names = ", ".join(fact["title"] for fact in facts[:LISTED_DISTRIBUTIONS])
            yield f"{nodes}: {len(facts)} distributions differ: {names}, ... (--json lists all)"
            continue
        for fact in facts:
            for deviation in fact["deviations"]:
                if deviation["nodes"] == nodes:
                    yield _deviation_line(fact, deviation)


def _nodes_with_distributions(record: Record) -> set[str]:
    """The node sets whose distributions say more than that some file differs."""
    nodes = set()
    for fact in record["facts"]:
        if fact["group"] == DISTRIBUTIONS:
            nodes |= {deviation["nodes"] for deviation in fact["deviations"]}
    return nodes


def _deviation_line(fact: Mapping[str, Any], deviation: Mapping[str, Any]) -> str:
    value = f"{deviation['nodes']}: {fact['title']} {deviation['value']}"
    if deviation["below_minimum"]:
        return f"{value}; at least {fact['minimum']} is needed"
    if fact["basis"] == "none":
        is_absent = deviation["value"] == NOT_INSTALLED
        return value if is_absent else f"{value}; no value has a majority"
    if fact["basis"] == "expectation":
        return f"{value}; expected: {fact['reference']}"
    return f"{value}; on {format_count(fact['count'], 'node')}: {fact['reference']}"


def _unread_lines(record: Record) -> Iterator[str]:
    for fact in record["facts"]:
        for row in fact["unread"]:
            yield f"{row['nodes']}: {fact['title']} is unknown: {row['reason']}"


def _reference_lines(record: Record) -> list[str]:
    rows: list[Sequence[str]] = []
    for fact in record["facts"]:
        if fact["reference"] is not None and fact["count"]:
            rows.append((fact["title"], str(fact["count"]), fact["reference"]))
    return table(rows, ("fact", "nodes", "value")).splitlines()
