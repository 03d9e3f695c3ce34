"""The page of compared nodes: parsed as HTML, and its chart as geometry."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision import render, report
from provision.cli import console
from provision.cli.main import cli
from provision.core.documents import DriftRecord
from provision.report.nodes import MIN_MARK, ChartRow, NodeChart, draw
from provision.verbs.drift.comparison import ObservedNode
from tests.drift_records import cluster, facts, record, timed_out
from tests.unit.report.test_report_page import Page

OLD = facts(driver="535.104.05")


def html(document: DriftRecord) -> str:
    values = report.nodes_template_values(document)
    return render.render_report(render.NODES_REPORT, values, remake=["provision", "report"])


def row(chart: NodeChart, title: str) -> ChartRow:
    [match] = [each for each in chart.rows if each.title == title]
    return match


def test_page_is_closed_and_needs_nothing_from_outside() -> None:
    text = html(record(cluster(8, n0003=OLD), {"n0009": timed_out()}))
    page = Page(text)
    assert not page.all("script") and not page.all("link") and not page.all("img")
    assert not re.findall(r"(?:src|href)=\"(?!#)", text)
    assert "default-src 'none'" in text
    for words in ("1 deviates", "1 unknown", "535.104.05", "timed-out", "On no node: SHARP."):
        assert words in page.text


def test_texts_of_nodes_are_escaped() -> None:
    nodes = cluster(3, n0002=facts(kernel="<script>alert(1)</script>"))
    page = Page(html(record(nodes)))
    assert not page.all("script") and "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize("count", [1, 8, 45, 46, 1000])
def test_all_marks_lie_within_the_plot(count: int) -> None:
    nodes = cluster(count, **{f"n{count:04}": OLD, "n0001": OLD})
    chart = draw(record(nodes, {"dead": timed_out()}))
    left, top, right, bottom = chart.plot
    for each in chart.rows:
        assert top <= each.y < bottom
        for span in each.spans:
            assert left - MIN_MARK <= span.x and span.x + span.width <= right + MIN_MARK
    assert right <= chart.width and bottom <= chart.height


def test_one_node_of_a_thousand_is_a_visible_mark_with_its_name() -> None:
    chart = draw(record(cluster(1000, n0042=OLD)))
    band, mark = row(chart, "driver").spans[0], row(chart, "driver").spans[-1]
    assert (mark.kind, mark.width, mark.tooltip) == ("value0", MIN_MARK, "n0042: driver 535.104.05")
    assert band.kind == "same" and len(row(chart, "kernel").spans) == 1
    assert [label.text for label in chart.outliers] == ["n0042"]
    assert len(chart.names) <= 10


def test_names_of_neighbors_do_not_overlap() -> None:
    nodes = cluster(1000, **{f"n{number:04}": OLD for number in range(400, 432)})
    chart = draw(record(nodes))
    assert len(row(chart, "driver").spans) == 32 + 2
    places = [label.x for label in chart.outliers]
    assert all(later - earlier >= 12 for earlier, later in itertools.pairwise(places))


def test_few_nodes_have_their_names_and_values_in_the_chart() -> None:
    chart = draw(record(cluster(8, n0003=OLD)))
    assert [label.text for label in chart.names] == [f"n{number:04}" for number in range(1, 9)]
    assert (len(chart.lines), chart.outliers) == (7, ())
    [mark] = [span for span in row(chart, "driver").spans if span.kind == "value0"]
    assert mark.text == "535.104.05"


def test_another_value_has_another_color() -> None:
    nodes = cluster(9, n0003=OLD, n0004=OLD, n0005=facts(driver="550.54"))
    kinds = {span.tooltip[:5]: span.kind for span in row(draw(record(nodes)), "driver").spans}
    assert kinds["n0003"] == kinds["n0004"] == "value0" and kinds["n0005"] == "value1"


def test_node_without_the_environment_is_blank_where_there_is_nothing_to_compare() -> None:
    values = {**facts().values, "environment": None}
    del values["lock"]
    chart = draw(record(cluster(3, n0002=ObservedNode(values=values))))
    assert {span.kind for span in row(chart, "lock").spans} == {"same"}
    assert sum(span.width for span in row(chart, "lock").spans) == 160
    assert "value0" in {span.kind for span in row(chart, "environment").spans}


def test_distributions_that_are_not_drawn_are_counted_and_listed() -> None:
    old = {f"distribution:p{number:02}": "1.0" for number in range(60)}
    new = {f"distribution:p{number:02}": "2.0" for number in range(60)}
    document = record({"n1": facts(**new), "n2": facts(**new), "n3": facts(**old)})
    drawn = [row.title for row in draw(document).rows if row.title.startswith("p")]
    assert len(drawn) == 24
    page = Page(html(document))
    assert "36 more distributions" in page.text and "p59" in page.text


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["report", *arguments])


def test_command_draws_a_record(tmp_path: Path) -> None:
    source, out = tmp_path / "drift.json", tmp_path / "drift.html"
    source.write_text(json.dumps(record(cluster(8, n0003=OLD))))
    result = run("--nodes", str(source), "-o", str(out))
    summary = "8 nodes: 1 deviates, 7 the same"
    assert result.stdout == f"wrote {out}: train on a100, drift, {summary}\n"
    command = shlex.join(["provision", "report", "--nodes", str(source), "-o", str(out)])
    assert command in unescape(out.read_text())
    assert json.loads(run("--nodes", str(source), "--json").stdout)["verdict"] == "drift"
    printed = console.json_object("drift", json.loads(source.read_text()))
    source.write_text(json.dumps(printed))
    assert run("--nodes", str(source), "-o", str(out)).stdout == result.stdout


def test_command_refuses_other_files(tmp_path: Path) -> None:
    file = tmp_path / "the file.json"
    assert run("--nodes", str(file)).exit_code == 3
    file.write_text("{")
    assert run("--nodes", str(file)).exit_code == 7
    document = record(cluster(2))
    del document["counts"]
    file.write_text(json.dumps(document))
    result = run("--nodes", str(file))
    assert result.exit_code == 7 and "counts" in result.stderr
    result = run(str(file))
    assert result.exit_code == 3, "a comparison of nodes is no passport"
    assert f"provision report --nodes {shlex.quote(str(file))}" in result.stderr
    assert run("--nodes", str(file), "passport.json").exit_code == 2
    assert run().exit_code == 2
