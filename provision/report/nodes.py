"""A record of `provision drift` -> the page that draws it: nodes and facts, outliers marked. Pure.

One chart shows every node and every fact: a row is a fact, a column is a node. Nodes that have what
they should are a band, and a node that deviates is a mark in it. So eight nodes and a thousand look
alike, and what deviating nodes have in common (a rack, a boot image) is seen as a pattern.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.core.documents import DriftDeviation, DriftFact, DriftNode, DriftRecord
from provision_runtime.report.text import format_count

# What a node has of a fact: the kind of its mark, its tooltip, and its value if it deviates.
Cell = tuple[str, str, str]

# The chart, in units of its own viewBox.
WIDTH, LEFT, PLOT_WIDTH, GAP = 1100.0, 150.0, 640.0, 10.0
MAX_COLUMN = 80.0
# Marks this wide hold their value.
WRITTEN_MARK = 40.0
ROW_HEIGHT, GROUP_HEIGHT = 18.0, 28.0
MARGIN = 6.0
CHARACTER_WIDTH = 6.4
# A mark of one node among a thousand must be seen.
MIN_MARK = 3.0
# Columns this wide have their nodes' names above them. Among narrower ones only nodes that deviate
# are named, as far as there is room.
NAMED_COLUMN, LABEL_DISTANCE, LABEL_ANGLE, LINE_HEIGHT = 14.0, 14.0, 60, 11.0
MAX_TICKS = 8
# The fills of deviating values: further values of a fact share the last one.
COLORS = 6
# Rows of distributions in the chart; the list below it has all.
DRAWN_DISTRIBUTIONS = 24
DISTRIBUTIONS, ABSENT = "distributions", "none"
SAME, UNREAD, SILENT, BLANK = "same", "unread", "silent", "blank"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Neighboring nodes with the same value. kind: SAME, UNREAD, SILENT, or value0 to value5. text:
    the value, as far as there is room for it."""

    x: float
    width: float
    kind: str
    tooltip: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ChartRow:
    """One fact. y: of its upper edge. reference: cut to the room that there is."""

    y: float
    title: str
    reference: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Label:
    """The name of a node above or below its column. angle: in degrees."""

    x: float
    y: float
    text: str
    angle: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeChart:
    """plot: the left, upper, right and lower edge of the bands. groups: y and heading. names: of
    all columns, or of some; outliers: of deviating columns. lines: x of what separates columns."""

    width: float
    height: float
    plot: tuple[float, float, float, float]
    groups: tuple[tuple[float, str], ...]
    rows: tuple[ChartRow, ...]
    names: tuple[Label, ...]
    outliers: tuple[Label, ...]
    lines: tuple[float, ...]


@dataclass(frozen=True)
class NodeDeviation:
    """One value that some nodes have and should not. kind: its fill in the chart."""

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
    distributions = sum(fact["group"] == DISTRIBUTIONS for fact in record["facts"])
    return {
        "page": page,
        "hidden": max(0, distributions - DRAWN_DISTRIBUTIONS),
        "chart": draw(record),
        "row_height": ROW_HEIGHT,
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


def draw(record: DriftRecord) -> NodeChart:
    """The chart of a record."""
    nodes = record["nodes"]
    column = min(MAX_COLUMN, PLOT_WIDTH / max(1, len(nodes)))
    right = LEFT + column * len(nodes)
    labels = _top_labels([node["name"] for node in nodes], column)
    top = round(_label_room(labels) + 2 * MARGIN, 1)
    names = [replace(label, y=top - MARGIN) for label in labels]
    rows = [ChartRow(y=top, title="node", reference="", spans=_spans(_verdicts(nodes), column))]
    groups: list[tuple[float, str]] = []
    y = top + ROW_HEIGHT
    for fact in _drawn_facts(record["facts"]):
        if not groups or groups[-1][1] != fact["group"]:
            y += GROUP_HEIGHT
            groups.append((y - MARGIN, fact["group"]))
        reference = "no majority" if fact["reference"] is None else fact["reference"]
        rows.append(
            ChartRow(
                y=y,
                title=_cut(fact["title"], LEFT - GAP),
                reference=_cut(reference, WIDTH - right - GAP),
                spans=_spans(_cells(fact, nodes), column),
            )
        )
        y += ROW_HEIGHT
    outliers = _bottom_labels(nodes, column, y + 2 * MARGIN)
    separators = range(1, len(nodes)) if column >= NAMED_COLUMN else ()
    return NodeChart(
        width=WIDTH,
        height=round(y + 3 * MARGIN + _label_room(outliers), 1),
        plot=(LEFT, top, round(right, 1), y),
        groups=tuple(groups),
        rows=tuple(rows),
        names=tuple(names),
        outliers=tuple(outliers),
        lines=tuple(round(LEFT + column * index, 1) for index in separators),
    )


def _drawn_facts(facts: Sequence[DriftFact]) -> list[DriftFact]:
    drawn = [fact for fact in facts if fact["group"] != DISTRIBUTIONS and not _is_absent(fact)]
    distributions = [fact for fact in facts if fact["group"] == DISTRIBUTIONS]
    return drawn + distributions[:DRAWN_DISTRIBUTIONS]


def _verdicts(nodes: Sequence[DriftNode]) -> list[Cell]:
    """The first row: whether anything deviates."""
    cells = []
    for node in nodes:
        name = node["name"]
        if "failure" in node:
            cells.append((SILENT, f"{name}: no answer, {node['failure']}", ""))
        elif node["verdict"] == "drift":
            differences = format_count(len(node["differs"]), "difference")
            cells.append((_color(0), f"{name}: {differences}", ""))
        elif node["verdict"] == "unknown":
            cells.append((UNREAD, f"{name}: {', '.join(node['unread'])} unknown", ""))
        else:
            cells.append((SAME, "", ""))
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
            cells.append((SILENT, f"{node['name']}: no answer", ""))
        elif name in node.get("differs", {}):
            value = node["differs"][name]
            cells.append((colors[value], f"{node['name']}: {title} {value}", value))
        elif name in node.get("unread", {}):
            reason = node["unread"][name]
            cells.append((UNREAD, f"{node['name']}: {title} unknown: {reason}", ""))
        elif name in node.get("without", ()):
            cells.append((BLANK, "", ""))
        else:
            cells.append((SAME, "", ""))
    return cells


def _spans(cells: Sequence[Cell], column: float) -> tuple[Span, ...]:
    """Equal neighbors as one span. Bands come first, so that marks lie on them."""
    bands: list[Span] = []
    marks: list[Span] = []
    start = 0
    for index, cell in enumerate(cells):
        if index + 1 < len(cells) and cells[index + 1] == cell:
            continue
        kind, tooltip, value = cell
        x, width = LEFT + start * column, (index + 1 - start) * column
        if kind not in (SAME, BLANK) and width < MIN_MARK:
            x, width = x + width / 2 - MIN_MARK / 2, MIN_MARK
        text = _cut(value, width - 2 * MARGIN) if width >= WRITTEN_MARK else ""
        span = Span(x=round(x, 2), width=round(width, 2), kind=kind, tooltip=tooltip, text=text)
        (bands if kind == SAME else marks).append(span)
        start = index + 1
    return (*bands, *(span for span in marks if span.kind != BLANK))


def _top_labels(names: Sequence[str], column: float) -> list[Label]:
    """All names if they fit above their columns, else some, evenly."""
    longest = max((len(name) for name in names), default=0) * CHARACTER_WIDTH
    step, angle = max(1, round(len(names) / MAX_TICKS)), 0
    if column >= NAMED_COLUMN:
        step, angle = 1, 0 if longest < column - MARGIN else -LABEL_ANGLE
    labels = []
    for index in range(0, len(names), step):
        labels.append(Label(x=_middle(index, column), y=0, text=names[index], angle=angle))
    return labels


def _bottom_labels(nodes: Sequence[DriftNode], column: float, y: float) -> list[Label]:
    """The names of nodes that deviate or are unknown, as far as there is room."""
    labels: list[Label] = []
    if column >= NAMED_COLUMN:
        return labels
    for index, node in enumerate(nodes):
        x = _middle(index, column)
        if node["verdict"] != SAME and (not labels or x - labels[-1].x >= LABEL_DISTANCE):
            labels.append(Label(x=x, y=y, text=node["name"], angle=LABEL_ANGLE))
    return labels


def _middle(index: int, column: float) -> float:
    return round(LEFT + (index + 0.5) * column, 1)


def _label_room(labels: Sequence[Label]) -> float:
    """The height that the highest label needs."""
    heights = [0.0]
    for label in labels:
        length = len(label.text) * CHARACTER_WIDTH
        heights.append(LINE_HEIGHT + length * math.sin(math.radians(abs(label.angle))))
    return max(heights)


def _cut(text: str, room: float) -> str:
    count = int(room / CHARACTER_WIDTH)
    return text if len(text) <= count else f"{text[: count - 1]}…"
