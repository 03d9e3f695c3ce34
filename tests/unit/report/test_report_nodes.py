"""The page of compared nodes: parsed as HTML, and its bars as spans of nodes."""

from __future__ import annotations

import json
import re
import shlex
import sys
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision import render, report
from provision.cli import console
from provision.cli.main import cli
from provision.core.documents import DriftRecord
from provision.report.nodes import Span, node_spans
from tests.drift_records import cluster, facts, observed, record, timed_out
from tests.unit.report.test_report_page import Page

OLD = facts(driver="535.104.05")


def html(document: DriftRecord) -> str:
    values = report.nodes_values(document)
    return render.render_report(render.NODES_REPORT, values, remake=["provision", "report"])


def spans(document: DriftRecord, title: str) -> list[Span]:
    [fact] = [fact for fact in document["facts"] if fact["title"] == title]
    return node_spans(document["nodes"], fact)


def test_page_is_closed_and_needs_nothing_from_outside() -> None:
    text = html(record(cluster(8, n0003=OLD), {"n0009": timed_out()}))
    page = Page(text)
    assert not page.all("script") and not page.all("link") and not page.all("img")
    assert not re.findall(r"(?:src|href)=\"(?!#)", text)
    assert "default-src 'none'" in text
    for words in ("1 deviating", "1 unknown", "535.104.05", "timed-out", "On no node: SHARP."):
        assert words in page.text


def test_texts_of_nodes_are_escaped() -> None:
    nodes = cluster(3, n0002=facts(kernel="<script>alert(1)</script>"))
    page = Page(html(record(nodes)))
    assert not page.all("script") and "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize("count", [1, 8, 1000])
def test_every_row_has_all_nodes_in_their_order(count: int) -> None:
    nodes = cluster(count, **{f"n{count:04}": OLD, "n0001": OLD})
    document = record(nodes, {"dead": timed_out()})
    for fact in (None, *document["facts"]):
        spans = sorted(node_spans(document["nodes"], fact))
        ends = [span.start + span.width for span in spans]
        assert [span.start for span in spans] == [0, *ends[:-1]] and ends[-1] == count + 1


def test_one_node_of_a_thousand_is_a_mark_on_the_band() -> None:
    document = record(cluster(1000, n0042=OLD))
    mark = spans(document, "driver")[-1]
    assert mark == (41, 1, "value0", "n0042: driver 535.104.05")
    assert len(spans(document, "kernel")) == 1


def test_another_value_has_another_color() -> None:
    nodes = cluster(9, n0003=OLD, n0004=OLD, n0005=facts(driver="550.54"))
    _, _, first, second = spans(record(nodes), "driver")
    assert first == (2, 2, "value0", "n0003 to n0004: driver 535.104.05")
    assert second == (4, 1, "value1", "n0005: driver 550.54")


def test_node_without_the_environment_is_blank_where_there_is_nothing_to_compare() -> None:
    values = {**facts()["facts"], "environment": None}
    del values["lock"]
    document = record(cluster(3, n0002=observed(values)))
    assert {span.kind for span in spans(document, "lock")} == {"same", "blank"}
    assert "value0" in {span.kind for span in spans(document, "environment")}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["report", *arguments])


def test_command_draws_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "drift.json", tmp_path / "drift.html"
    source.write_text(json.dumps(record(cluster(8, n0003=OLD))))
    arguments = ["--nodes", str(source), "-o", str(out)]
    monkeypatch.setattr(sys, "argv", ["provision", "report", *arguments])
    result = run(*arguments)
    summary = "8 nodes: 1 deviating, 7 the same"
    assert result.stdout == f"wrote {out}: train on a100, drift, {summary}\n"
    command = shlex.join(["provision", "report", *arguments])
    assert command in unescape(out.read_text())
    printed = json.loads(run("--nodes", str(source), "--json").stdout)
    assert printed == console.json_object("drift", json.loads(source.read_text()))
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
