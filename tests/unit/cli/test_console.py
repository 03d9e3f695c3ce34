"""What the console prints: text that is safe for a terminal, and smoke tests as the runtime prints them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from provision.cli import console
from provision.cli.smoke_output import smoke_lines
from provision.core.errors import ProvisionError
from provision.core.types import (
    BuildResult,
    HostGpus,
    Prefix,
    SmokeResult,
    StageRecord,
    StageStatus,
)
from provision.verbs.build.output import build_lines
from provision_runtime.report import table
from provision_runtime.report.text import escape_line
from tests import evidence
from tests.unit.image.test_image_build import LOCK, RESOLUTION

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
    output.result("clean", {}, f"{evil}\n\tthe next line")
    output.info(evil)
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
    assert "it has schema 1" in line


class Terminal(io.StringIO):
    """A stream that is a terminal, as far as it says."""

    def isatty(self) -> bool:
        return True


def test_paths_in_the_home_folder_are_short_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    text = "see /home/ann/lab, (/home/ann/x), /home/anna/y, '/home/ann/a b', /mnt/home/ann/z"
    console.Console().result("clean", {}, text)
    assert capsys.readouterr().out == f"{text}\n"
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    console.Console().result("clean", {}, text)
    # A quoted `~` would be no home folder to a shell.
    assert terminal.getvalue() == (
        "see ~/lab, (~/x), /home/anna/y, '/home/ann/a b', /mnt/home/ann/z\n"
    )


def test_quiet_prints_results_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    output = console.Console(quiet=True)
    output.info("solving")
    output.warn("hot")
    output.result("clean", {}, "done")
    assert capsys.readouterr() == ("done\n", "warning: hot\n")


def test_a_bar_within_a_bar_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bars at once would overwrite each other."""
    monkeypatch.setattr("sys.stderr", Terminal())
    output = console.Console()
    with output.meter("solving", 0) as outer, output.meter("packaging", 3) as inner:
        inner.advance(1)
        assert outer.shown is not None and inner.shown is None
    with output.meter("loading", 3) as later:
        assert later.shown is not None


def test_after_a_watched_test_only_what_did_not_pass_is_repeated() -> None:
    text = "\n".join(smoke_lines(RESULT, brief=True))
    assert "barrier" not in text and "wrong-value, rank 1" in text
    passed = SmokeResult(
        where="prefix",
        verdict="pass",
        report=evidence.report(evidence.phase()),
        evidence=Path("/data"),
    )
    assert smoke_lines(passed, brief=True) == [
        "smoke test in the prefix: pass (2 ranks, gloo on cpu)",
        "  evidence: /data",
    ]


@pytest.mark.parametrize(
    "smoke, statuses, line",
    [
        ((RESULT,), ("kept", "kept", "ran"), "nothing changed; smoke test repeated"),
        ((), ("kept", "skipped"), "nothing changed"),
        ((RESULT,), ("kept", "made", "ran"), None),
    ],
)
def test_a_build_that_changed_nothing_says_so(
    smoke: tuple[SmokeResult, ...], statuses: tuple[StageStatus, ...], line: str | None
) -> None:
    stages = [
        StageRecord(stage="lock", status=status, detail="", seconds=0.1) for status in statuses
    ]
    result = BuildResult(
        name="toy",
        folder=Path("/lab/envs/toy"),
        resolution=RESOLUTION,
        pins=(),
        lock=LOCK,
        prefix=Prefix(name="toy", path=Path("/data/prefixes/toy"), lock_sha256=LOCK.sha256),
        image=None,
        kernel=None,
        smoke=smoke,
        stages=tuple(stages),
    )
    lines = build_lines(result, HostGpus(driver=None, gpus=()))
    assert [text for text in lines if "nothing" in text] == ([line] if line else [])


def test_lists_of_an_error_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    error = ProvisionError("There is  none.", advice="Nearest:\n  `--torch   2.3`\n  `--cpu`\n")
    console.Console().error(error)
    assert capsys.readouterr().err == (
        "error: There is none.\nNearest:\n  `--torch 2.3`\n  `--cpu`\n"
    )


@pytest.mark.parametrize("columns", [80, 300])
def test_errors_and_warnings_fit_the_terminal_and_100_columns(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide terminal gets lines that an eye can follow. Words, paths among them, stay whole."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    words = "no build holds code for it, and " * 12 + "/a/path/" + "x" * 60
    output = console.Console()
    output.error(ProvisionError(words, advice=f"Why:\n  {words}"))
    output.warn(words)
    lines = capsys.readouterr().err.splitlines()
    assert 70 < max(len(line) for line in lines) <= min(columns, 100)
    assert sum("x" * 60 in line for line in lines) == 3
    assert "Why:" in lines
    assert lines[0].startswith("error: no build holds")
    assert any(line.startswith("warning: no build holds") for line in lines)
    assert " ".join(" ".join(lines).split()).count(words) == 3


def test_wrapped_lines_are_indented() -> None:
    assert console.wrap("lock: lock 2 packages", 12, indent=2) == ["lock: lock 2", "  packages"]
    assert console.wrap("lock: lock 2 packages", None, indent=2) == ["lock: lock 2 packages"]


def test_a_document_is_printed_byte_for_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A carriage return, a code of a terminal, and the byte of a path that is no text."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    text = "a\r\n\x1b[31mb\u00e9\udcff\n\n"
    console.Console().document("clean", {}, text)
    sys.stdout.flush()
    assert raw.getvalue() == text.encode("utf-8", "surrogateescape")


def test_a_document_on_a_terminal_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    console.Console().document("clean", {}, "a\x1b[31mb\r\n")
    stream.flush()
    assert b"\x1b" not in raw.getvalue() and b"\r" not in raw.getvalue()


@pytest.mark.parametrize(
    ("text", "colored"),
    [
        ("  pass     barrier  200", "\x1b[32m  pass\x1b[0m     barrier  200"),
        ("lab   stale   5 GiB", "lab   \x1b[33mstale\x1b[0m   5 GiB"),
        ("smoke test: fail (2 ranks)", "smoke test: \x1b[31mfail\x1b[0m (2 ranks)"),
        ("lab  not installed", "lab  \x1b[33mnot installed\x1b[0m"),
        ("nodes that pass and do not fail", "nodes that pass and do not fail"),
        ("passport  lab", "passport  lab"),
    ],
)
def test_states_have_colors_on_a_terminal_only(
    text: str, colored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert console.with_colors(text, Terminal()) == colored
    assert console.with_colors(text, io.StringIO()) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.with_colors(text, Terminal()) == text
