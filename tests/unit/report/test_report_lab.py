"""The page of a lab: records of machines are read back, merged and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provision import render
from provision.cli.main import cli
from provision.core.paths import default_folders
from provision.core.records import parse_record
from provision.verbs.drift.drift import write_record
from provision.verbs.report.lab import LabReport
from provision.verbs.report.lab_page import page_values
from tests.drift_records import cluster, facts, record
from tests.unit.report.test_report_page import Page

NOW = 1_767_225_600.0
LOCK, OTHER_LOCK = "a" * 64, "b" * 64


def environment(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "project": "/home/ada/vision",
        "name": "train",
        "prefix": "/home/ada/prefixes/train",
        "state": "current",
        "reason": "",
        "size": None,
        "installed_at": None,
        "image": "",
        "image_size": 0,
        "kernel": False,
        "smoke": "",
        "verdicts": [],
        "lock": LOCK,
    }
    return {**values, **changes}


def verdict(host: str, word: str = "pass", elsewhere: str = "", days: float = 1) -> dict[str, Any]:
    at = NOW - days * 86400
    return {
        "target": "prefix",
        "verdict": word,
        "host": host,
        "elsewhere": elsewhere,
        "measured_at": at,
    }


def machine(user: str, host: str, *environments: dict[str, Any], **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "user": user,
        "host": host,
        "provision": "1.0",
        "gpus": "",
        "at": NOW,
        "environments": list(environments),
        "nodes": [],
        "jobs": [],
        "problems": [],
    }
    return {**values, **changes}


def document(*machines: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "provision.report-lab/1", "title": "vision", "records": list(machines)}


def html(*machines: dict[str, Any]) -> str:
    values = page_values(parse_record(LabReport, json.dumps(document(*machines))))
    return render.render_report(render.LAB_REPORT, values, remake=["provision", "report"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"verdicts": [verdict("n1")]}, "pass"),
        ({"verdicts": [verdict("n1", "fail")]}, "fail"),
        ({"verdicts": [verdict("n1")], "state": "differs"}, "unknown"),
        ({"verdicts": [verdict("n1", elsewhere="with driver 535")]}, "unknown"),
        ({"smoke": "of another lock"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_a_pass_counts_only_for_the_environment_as_it_is(
    changes: dict[str, Any], word: str
) -> None:
    page = Page(html(machine("ada", "n1", environment(**changes))))
    assert [a for a in page.all("span") if a.get("class") == f"verdict {word}"]
    assert page.all("title") and f"vision: {word}" in page.text


def test_members_share_a_row_and_their_locks_are_named() -> None:
    clone = environment(project="/home/bob/vision", lock=OTHER_LOCK, verdicts=[verdict("n9")])
    own = environment(verdicts=[verdict("n1", days=40)])
    page = Page(html(machine("bob", "n2", clone), machine("ada", "n1", own)))
    assert "Environment n1 n2 n9 train" in page.text and page.text.count("train") == 1
    assert LOCK[:12] in page.text and OTHER_LOCK[:12] in page.text
    assert "not tested here, bob" in page.text
    assert [a for a in page.all("span") if a.get("class") == "old"][1:]  # the first explains it


def test_texts_of_records_are_escaped() -> None:
    job = {"job": "<script>", "at": NOW, "verdict": "hang", "summary": "<b>", "causes": []}
    page = Page(html(machine("ada", "n1", jobs=[job])))
    assert not page.all("script") and "<script>" in page.text and "vision: fail" in page.text


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["report", *arguments])


def test_command_merges_records_and_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    folder = default_folders().drift("train")
    folder.mkdir(parents=True)
    write_record(folder / "x.json", record(cluster(3, n0002=facts(driver="1"))))
    old = tmp_path / "old.json"
    old.write_text(json.dumps(document(machine("ada", "n1", environment(), at=NOW - 1))))
    new = tmp_path / "new.json"
    new.write_text(json.dumps(document(machine("ada", "n1"))))

    printed = run("--json", str(new), str(old))
    assert printed.exit_code == 0, printed.output
    records = {row["host"]: row for row in json.loads(printed.stdout)["records"]}
    assert len(records) == 2 and records["n1"]["environments"] == []
    [here] = [row for host, row in records.items() if host != "n1"]
    [event] = here["nodes"]
    assert (event["event"], event["verdict"], event["environment"]) == ("drift", "fail", "train")
    assert event["states"]["n0002"] == "drift: driver"

    merged = tmp_path / "merged.json"
    merged.write_text(printed.stdout)
    assert run("-o", "lab.html", str(merged)).exit_code == 0
    assert "n0002" in Page(Path("lab.html").read_text()).text


@pytest.mark.parametrize(
    ("text", "code"),
    [(None, 3), ("[]", 7), ("{}", 7), (json.dumps(document({"user": 1})), 7)],
)
def test_other_files_are_refused(tmp_path: Path, text: str | None, code: int) -> None:
    file = tmp_path / "record.json"
    if text is not None:
        file.write_text(text)
    result = run(str(file))
    assert result.exit_code == code
    assert "attribute" not in result.output
