"""The smoke report as lines: readable at 80 columns, one line per row, finding and advice when piped."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from typing import Any

import pytest

from provision_runtime.report import model, table
from provision_runtime.report.codec import decode
from tests.evidence import finding, phase, report

LONG = (
    "torch 2.3.1+cu121, CUDA 12.1, NCCL 2.20.5, Python 3.11.7 (rehearsal on Gloo/CPU: no GPU here)"
)


def phase_lines(document: dict[str, Any], width: int | None) -> list[str]:
    return table.phase_lines(decode(model.ReportedPhase, document, "phase"), width)


def test_piped_passing_phase_is_one_line() -> None:
    assert phase_lines(phase(message=LONG), None) == [f"pass     barrier        0.1 s  {LONG}"]


def test_piped_finding_has_one_line_and_one_of_advice() -> None:
    findings = [
        finding(),
        finding(id="slow-rank", verdict="warn", ranks=[0, 1, 2, 3, 7], advice=""),
    ]
    assert phase_lines(
        phase(verdict="fail", message="what the findings say", findings=findings), None
    ) == [
        "fail     barrier        0.1 s  2 findings",
        "    wrong-value, rank 1: 1 wrong of 2 at 8 B",
        "      -> check its memory",
        "    slow-rank [warn], ranks 0-3, 7: 1 wrong of 2 at 8 B",
    ]


def test_failure_without_findings_shows_its_message() -> None:
    assert phase_lines(phase(verdict="unknown", message="not finished"), None)[0].endswith(
        "not finished"
    )


def test_warning_shows_the_measurements() -> None:
    lines = phase_lines(phase(verdict="warn", findings=[finding(verdict="warn")]), None)
    assert lines[0].endswith("200 barriers")
    assert len(lines) == 3


@pytest.mark.parametrize("width", [50, 80, 132])
def test_lines_fit_the_terminal(width: int) -> None:
    findings = finding(message=LONG, advice=LONG, ranks=list(range(0, 40, 2)))
    lines = phase_lines(phase(verdict="fail", findings=[findings]), width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).count("NCCL") == 2
    tokens = [
        token
        for line in phase_lines(phase(verdict="fail", findings=[findings]), None)
        for token in line.split()
    ]
    assert [token for line in lines for token in line.split()] == tokens


def test_continuation_lines_are_indented() -> None:
    lines = phase_lines(phase(message=LONG), 80)
    assert len(lines) == 2
    assert {len(line) - len(line.lstrip()) for line in lines[1:]} == {table.MESSAGE_COLUMN}


def test_message_newlines_are_escaped() -> None:
    assert len(phase_lines(phase(message="one\npass     checkpoint\r\ntwo"), None)) == 1


def test_overlong_word_is_not_split() -> None:
    path = "/" + "folder/" * 20
    assert any(path in line for line in phase_lines(phase(message=f"written to {path} twice"), 80))


@pytest.mark.parametrize("ranks, expected", [
    ([3], "rank 3"),
    ([0, 1], "ranks 0, 1"),
    ([2, 0, 1], "ranks 0-2"),
    (list(range(64)), "ranks 0-63"),
    (list(range(0, 40, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
])  # fmt: skip
def test_rank_lists_are_formatted(ranks: list[int], expected: str) -> None:
    assert table.name_ranks(ranks) == expected


def test_full_report_has_a_header_and_lists_skipped_phases() -> None:
    lines = table.lines(model.parse(report(phase(), skipped=["ddp"])), None)
    assert lines[0] == table.HEAD
    assert lines[2] == f"skipped  ddp                   {table.SKIPPED}"


def test_width_is_the_terminals_or_none_in_a_pipe() -> None:
    reader, writer = os.pipe()
    controller, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
        assert table.terminal_width(terminal) == 97
        assert table.terminal_width(writer) is None
    finally:
        for descriptor in (reader, writer, controller, terminal):
            os.close(descriptor)
