"""A record of `provision drift` -> the page that draws it: nodes and facts, outliers marked. Pure.

One table shows every node and every fact: a row is a fact, and its bar is as many units long as there
are nodes. Nodes that have what they should are a band, and a node that deviates is a mark in it. So
eight nodes and a thousand look alike, and what deviating nodes have in common (a rack, a boot image)
is seen as a pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from provision.core.documents import DriftDeviation, DriftFact, DriftNode, DriftRecord
from provision_runtime.report.text import format_count

# What a node has of a fact: the kind of its mark, and its tooltip.
Cell = tuple[str, str]
# The fills of deviating values: further values of a fact share the last one.
COLORS = 6
DISTRIBUTIONS, ABSENT = "distributions", "none"
SAME, UNREAD, SILENT, BLANK = "same", "unread", "silent", "blank"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Neighboring nodes with the same value. start, count: in nodes. kind: SAME, UNREAD, SILENT,
    BLANK, or value0 to value5."""

    start: int
    count: int
    kind: str
    tooltip: str


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """One fact. reference: what nodes should have."""

    group: str
    title: str
    reference: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class NodeDeviation:
    """One value that some nodes have and should not. kind: its fill in the bars."""

    nodes: str
    count: int
    fact: str
    value: str
    kind: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class NodesPage:
    """The whole page, also as `--json`. common: what nodes have, with how many have it. absent:
    facts that no node has anything of."""

    title: str
    verdict: str
    summary: str
    setting: dict[str, str]
    deviations: tuple[NodeDeviation, ...]
    failures: tuple[dict[str, str], ...]
    common: tuple[tuple[str, str, int], ...]
    absent: tuple[str, ...]
    notes: tuple[str, ...]


def build_nodes_page(record: DriftRecord) -> NodesPage:
    """record: valid by its schema."""
    facts = record["facts"]
    absent = [fact["title"] for fact in facts if _is_absent(fact)]
    common = []
    for fact in facts:
        if fact["count"] and fact["reference"] is not None and not _is_absent(fact):
            common.append((fact["title"], fact["reference"], fact["count"]))
    return NodesPage(
        title=f"{record['name']} on {record['on']}",
        verdict=record["verdict"],
        summary=_summary(record["counts"]),
        setting=_setting(record),
        deviations=tuple(_deviations(facts)),
        failures=tuple(record["failures"]),
        common=tuple(common),
        absent=tuple(absent),
        notes=tuple(record["notes"]),
    )


def nodes_template_values(record: DriftRecord) -> dict[str, Any]:
    """The values of templates/nodes.html.j2."""
    page = build_nodes_page(record)
    nodes = record["nodes"]
    return {
        "page": page,
        "rows": bar_rows(record),
        "nodes": len(nodes),
        "names": " to ".join(dict.fromkeys(node["name"] for node in (*nodes[:1], *nodes[-1:]))),
        "has_unread": any(row.kind == UNREAD for row in page.deviations),
    }


def _is_absent(fact: DriftFact) -> bool:
    """Whether no node has anything of it: no SHARP anywhere."""
    return fact["reference"] == ABSENT and not fact["deviations"] and not fact["unread"]


def _summary(counts: Mapping[str, int]) -> str:
    parts = [f"{counts['same']} the same"]
    if counts["drift"]:
        verb = "deviates" if counts["drift"] == 1 else "deviate"
        parts.insert(0, f"{counts['drift']} {verb}")
    if counts["unknown"]:
        parts.append(f"{counts['unknown']} unknown")
    return f"{format_count(counts['nodes'], 'node')}: {', '.join(parts)}"


def _setting(record: DriftRecord) -> dict[str, str]:
    compared = "every byte" if record["deep"] else "records and sizes of files"
    return {
        "compared": record["written_at"],
        "environment": record["path"],
        "files": compared,
        "with": record["expected"] or "what most nodes have",
        "by": record["made_by"],
    }


def _deviations(facts: Sequence[DriftFact]) -> Iterator[NodeDeviation]:
    for fact in facts:
        for index, row in enumerate(fact["deviations"]):
            nodes, count, value = row["nodes"], row["count"], row["value"]
            expected = _expected(fact, row)
            yield NodeDeviation(nodes, count, fact["title"], value, _color(index), expected)
        for unread in fact["unread"]:
            nodes, count, value = unread["nodes"], unread["count"], f"unknown: {unread['reason']}"
            expected = _expected(fact, None)
            yield NodeDeviation(nodes, count, fact["title"], value, UNREAD, expected)


def _expected(fact: DriftFact, deviation: DriftDeviation | None) -> str:
    if deviation and deviation["is_below"]:
        return f"at least {fact['minimum']}"
    if fact["reference"] is None:
        return "no value has a majority"
    if fact["basis"] == "expectation":
        return f"{fact['reference']}, as expected"
    return f"{fact['reference']} ({format_count(fact['count'], 'node')})"


def _color(index: int) -> str:
    return f"value{min(index, COLORS - 1)}"


def bar_rows(record: DriftRecord) -> list[BarRow]:
    """A row for the nodes' verdicts, and one for each fact that any node has."""
    nodes = record["nodes"]
    rows = [BarRow(group="", title="node", reference="", spans=_spans(_verdicts(nodes)))]
    for fact in record["facts"]:
        if not _is_absent(fact):
            reference = "no majority" if fact["reference"] is None else fact["reference"]
            spans = _spans(_cells(fact, nodes))
            rows.append(
                BarRow(group=fact["group"], title=fact["title"], reference=reference, spans=spans)
            )
    return rows


def _verdicts(nodes: Sequence[DriftNode]) -> list[Cell]:
    """The first row: whether anything deviates."""
    cells = []
    for node in nodes:
        name = node["name"]
        if "failure" in node:
            cells.append((SILENT, f"{name}: no answer, {node['failure']}"))
        elif node["verdict"] == "drift":
            differences = format_count(len(node["differs"]), "difference")
            cells.append((_color(0), f"{name}: {differences}"))
        elif node["verdict"] == "unknown":
            cells.append((UNREAD, f"{name}: {', '.join(node['unread'])} unknown"))
        else:
            cells.append((SAME, ""))
    return cells


def _cells(fact: DriftFact, nodes: Sequence[DriftNode]) -> list[Cell]:
    """What each node has of a fact."""
    name, title = fact["name"], fact["title"]
    colors = {}
    for index, deviation in enumerate(fact["deviations"]):
        colors[deviation["value"]] = _color(index)
    cells = []
    for node in nodes:
        if "failure" in node:
            cells.append((SILENT, f"{node['name']}: no answer"))
        elif name in node.get("differs", {}):
            value = node["differs"][name]
            cells.append((colors[value], f"{node['name']}: {title} {value}"))
        elif name in node.get("unread", {}):
            reason = node["unread"][name]
            cells.append((UNREAD, f"{node['name']}: {title} unknown: {reason}"))
        elif name in node.get("without", ()):
            cells.append((BLANK, ""))
        else:
            cells.append((SAME, ""))
    return cells


def _spans(cells: Sequence[Cell]) -> tuple[Span, ...]:
    """Equal neighbors as one span."""
    spans = []
    start = 0
    for (kind, tooltip), group in groupby(cells):
        count = len(list(group))
        spans.append(Span(start=start, count=count, kind=kind, tooltip=tooltip))
        start += count
    # Bands come first, so that marks lie on them.
    return tuple(sorted(spans, key=lambda span: span.kind != SAME))
