"""A record of `provision drift` -> the page that draws it: nodes and facts, outliers marked. Pure.

One table shows every node and every fact: a row is a fact, and its bar is as many units long as there
are nodes. Nodes that have what they should are a band, and a node that deviates is a mark in it. So
eight nodes and a thousand look alike, and what deviating nodes have in common (a rack, a boot image)
is seen as a pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from provision.core.documents import DriftFact, DriftNode, DriftRecord
from provision_runtime.report.text import format_count

# The fills of deviating values: further values of a fact share the last one.
COLORS = 6
SAME, UNREAD, SILENT, BLANK = "same", "unread", "silent", "blank"
COUNTS = {"drift": "deviating", "same": "the same", "unknown": "unknown"}


class Span(NamedTuple):
    """Neighboring nodes with the same value. start, width: in nodes. kind: SAME, UNREAD, SILENT,
    BLANK, or value0 to value5."""

    start: int
    width: int
    kind: str
    tooltip: str


def nodes_values(record: DriftRecord) -> dict[str, Any]:
    """The values of templates/nodes.html.j2. record: valid by its schema."""
    nodes, counts = record["nodes"], record["counts"]
    title, verdict = f"{record['name']} on {record['on']}", record["verdict"]
    texts = [f"{counts[key]} {token}" for key, token in COUNTS.items() if counts[key]]
    summary = f"{format_count(counts['nodes'], 'node')}: {', '.join(texts)}"
    facts, absent = [], []
    for fact in record["facts"]:
        # No node has anything of it: no SHARP anywhere.
        if fact["reference"] == "none" and not fact["deviations"] and not fact["unread"]:
            absent.append(fact["title"])
        else:
            facts.append(fact)
    return {
        "page": {"title": title, "verdict": verdict},
        "headline": f"{title}, {verdict}, {summary}",
        "summary": summary,
        "record": record,
        "facts": facts,
        "absent": absent,
        "spans": partial(node_spans, nodes),
        "color": _color,
        "expected": _expected,
    }


def _expected(fact: DriftFact) -> str:
    if fact["reference"] is None:
        return "no value has a majority"
    return f"{fact['reference']} ({format_count(fact['count'], 'node')})"


def _color(index: int) -> str:
    return f"value{min(index, COLORS - 1)}"


def deviating_facts(node: DriftNode) -> str:
    """The names of what deviates, or could not be read."""
    return ", ".join([*node.get("differs", ()), *node.get("unread", ())])


def node_spans(nodes: Sequence[DriftNode], fact: DriftFact | None) -> list[Span]:
    """What the nodes have of a fact, equal neighbors as one span; without a fact, whether anything of
    them deviates."""
    spans = []
    start = 0
    cells = [_verdict(node) if fact is None else _value(fact, node) for node in nodes]
    for (kind, text), group in groupby(cells):
        width = len(list(group))
        ends = dict.fromkeys((nodes[start]["name"], nodes[start + width - 1]["name"]))
        tooltip = f"{' to '.join(ends)}: {text}" if text else ""
        spans.append(Span(start, width, kind, tooltip))
        start += width
    # Bands come first, so that marks lie on them.
    return sorted(spans, key=lambda span: span.kind != SAME)


def _verdict(node: DriftNode) -> tuple[str, str]:
    if "failure" in node:
        return SILENT, f"no answer, {node['failure']}"
    if node["verdict"] == "same":
        return SAME, ""
    kind = UNREAD if node["verdict"] == "unknown" else _color(0)
    return kind, deviating_facts(node)


def _value(fact: DriftFact, node: DriftNode) -> tuple[str, str]:
    name = fact["name"]
    if "failure" in node:
        return SILENT, "no answer"
    if name in node.get("differs", {}):
        value = node["differs"][name]
        values = [deviation["value"] for deviation in fact["deviations"]]
        return _color(values.index(value)), f"{fact['title']} {value}"
    if name in node.get("unread", {}):
        return UNREAD, f"{fact['title']} unknown: {node['unread'][name]}"
    return (BLANK if name in node.get("without", ()) else SAME), ""
