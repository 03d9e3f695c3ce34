"""Bytes for people, and text of any origin that a terminal can show."""

from __future__ import annotations

import pytest

from provision_runtime.report.text import escape_line, escape_terminal, format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023 << 20, "1023 MiB"),
        (16 << 20, "16 MiB"),
        (1 << 30, "1 GiB"),
        (12_345_678_901, "11.5 GiB"),
        (5 * 10**17, "444.1 PiB"),
    ],
)
def test_bytes_in_powers_of_1024(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_control_characters_become_escapes() -> None:
    assert escape_terminal("a\x1b[31m\u00e9\x9b\u202e\rb") == r"a\x1b[31m\xe9\x9b\u202e\rb".replace(
        r"\xe9", "\u00e9"
    )
    assert escape_terminal("one\r\n\ttwo\n") == "one\n\ttwo\n"


def test_undecodable_file_names_can_be_printed() -> None:
    assert escape_terminal("lab\udcff").encode() == rb"lab\udcff"


def test_newlines_in_values_are_escaped() -> None:
    assert escape_line("a\nb\tc\x07") == r"a\nb c\x07"
