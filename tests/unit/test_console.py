"""What the console prints: text that is safe for a terminal, and smoke tests as the runtime prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.cli import console
from provision.cli.format.environment import smoke_lines
from provision.core.errors import ProvisionError
from provision.core.types import SmokeResult
from provision_runtime.report import table
from provision_runtime.report.text import escape_line
from tests import evidence

FINDING = evidence.finding(
    message="an element of the result is not what it must be, and that is a long sentence about it"
)
REPORT = evidence.report(
    evidence.phase(),
    evidence.phase("ddp", verdict="fail", findings=[FINDING]),
    skipped=["checkpoint"],
)
RESULT = SmokeResult(
    where="prefix", verdict="fail", report=REPORT, evidence=Path("/data/smoke/lab/prefix")
)


def test_piped_rows_findings_and_advice_are_single_lines() -> None:
    assert smoke_lines(RESULT) == [
        "smoke test in the prefix: fail (2 ranks, gloo on cpu)",
        f"  {table.HEAD}",
        "  pass     barrier        0.1 s  200 barriers",
        "  fail     ddp            0.1 s  1 finding",
        f"      wrong-value, rank 1: {FINDING['message']}",
        "        -> check its memory",
        f"  skipped  checkpoint            {table.SKIPPED}",
        "  evidence: /data/smoke/lab/prefix",
    ]


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output = console.Console(verbose=True)
    evil = "a\x1b]0;title\x07\x9b2J\u202eb\rc"
    output.result({}, f"{evil}\n\tthe next line")
    output.say(evil)
    output.warn(evil)
    output.error(ProvisionError(evil, details=f"{evil}\r\nmore"))
    out, err = capsys.readouterr()
    assert out == "a\\x1b]0;title\\x07\\x9b2J\\u202eb\\rc\n\tthe next line\n"
    assert not [
        character
        for character in out + err
        if not character.isprintable() and character not in "\n\t"
    ]
    assert escape_line("label\nsmoke  pass") == "label\\nsmoke  pass"


def test_text_between_colons_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output = console.Console()
    output.error(ProvisionError("There is no lab:b:c."))
    output.warn("the mount /a:ok:rw")
    assert capsys.readouterr().err == "error: There is no lab:b:c.\nwarning: the mount /a:ok:rw\n"


def test_lines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "terminal_width", lambda: 60)
    lines = smoke_lines(RESULT)
    assert max(map(len, lines)) <= 60
    assert len(lines) > 7


def test_report_of_another_schema_is_named() -> None:
    old = SmokeResult(
        where="image",
        verdict="pass",
        report={"schema": 1, "phases": [{"name": "facts"}]},
        evidence=Path("/data"),
    )
    (_, line, _) = smoke_lines(old)
    assert "has schema 1, which is not supported: test again" in line
