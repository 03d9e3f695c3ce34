"""A record of `provision drift` -> the page that draws it: nodes and facts, outliers marked. Pure.

One table shows every node and every fact: a row is a fact, and its bar is as many units long as there
are nodes. Nodes that have what they should are a band, and a node that deviates is a mark in it. So
eight nodes and a thousand look alike, and what deviating nodes have in common (a rack, a boot image)
is seen as a pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from provision.core.documents import DriftFact, DriftNode, DriftRecord
from provision_runtime.report.text import format_count

# What a node has of a fact: the kind of its mark, and its tooltip.
Cell = tuple[str, str]
# The fills of deviating values: further values of a fact share the last one.
COLORS = 6
ABSENT = "none"
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


def nodes_values(record: DriftRecord) -> dict[str, Any]:
    """The values of templates/nodes.html.j2. record: valid by its schema."""
    nodes = record["nodes"]
    title, verdict = f"{record['name']} on {record['on']}", record["verdict"]
    summary = _summary(record["counts"])
    return {
        "page": {"title": title, "verdict": verdict},
        "headline": f"{title}, {verdict}, {summary}",
        "summary": summary,
        "record": record,
        "facts": [fact for fact in record["facts"] if not _is_absent(fact)],
        "absent": [fact["title"] for fact in record["facts"] if _is_absent(fact)],
        "rows": bar_rows(record),
        "names": " to ".join(dict.fromkeys(node["name"] for node in (*nodes[:1], *nodes[-1:]))),
        "color": _color,
        "expected": _expected,
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


def _expected(fact: DriftFact) -> str:
    if fact["reference"] is None:
        return "no value has a majority"
    return f"{fact['reference']} ({format_count(fact['count'], 'node')})"


def _color(index: int) -> str:
    return f"value{min(index, COLORS - 1)}"


def bar_rows(record: DriftRecord) -> list[BarRow]:
    """A row for the nodes' verdicts, and one for each fact that any node has."""
    nodes = record["nodes"]
    verdicts = _spans(map(_verdict, nodes))
    rows = [BarRow(group="", title="node", reference="", spans=verdicts)]
    for fact in record["facts"]:
        if not _is_absent(fact):
            reference = "no majority" if fact["reference"] is None else fact["reference"]
            spans = _spans(_cell(fact, node) for node in nodes)
            rows.append(
                BarRow(group=fact["group"], title=fact["title"], reference=reference, spans=spans)
            )
    return rows


def _verdict(node: DriftNode) -> Cell:
    """Whether anything of a node deviates, and what."""
    if "failure" in node:
        return SILENT, f"{node['name']}: no answer, {node['failure']}"
    if node["verdict"] == "same":
        return SAME, ""
    kind = UNREAD if node["verdict"] == "unknown" else _color(0)
    return kind, f"{node['name']}: {deviating_facts(node)}"


def deviating_facts(node: DriftNode) -> str:
    """The names of what deviates, or could not be read."""
    return ", ".join([*node.get("differs", ()), *node.get("unread", ())])


def _cell(fact: DriftFact, node: DriftNode) -> Cell:
    """What a node has of a fact."""
    name, label = fact["name"], f"{node['name']}: {fact['title']}"
    if "failure" in node:
        return SILENT, f"{node['name']}: no answer"
    if name in node.get("differs", {}):
        value = node["differs"][name]
        values = [deviation["value"] for deviation in fact["deviations"]]
        return _color(values.index(value)), f"{label} {value}"
    if name in node.get("unread", {}):
        return UNREAD, f"{label} unknown: {node['unread'][name]}"
    return (BLANK if name in node.get("without", ()) else SAME), ""


def _spans(cells: Iterable[Cell]) -> tuple[Span, ...]:
    """Equal neighbors as one span."""
    spans = []
    start = 0
    for (kind, tooltip), group in groupby(cells):
        count = len(list(group))
        spans.append(Span(start=start, count=count, kind=kind, tooltip=tooltip))
        start += count
    # Bands come first, so that marks lie on them.
    return tuple(sorted(spans, key=lambda span: span.kind != SAME))
