"""Values as text for people and terminals; the host uses the same."""

from __future__ import annotations

import re

# Characters that move the cursor, change colors or the title, or reverse the reading order; and
# halves of surrogate pairs, which no terminal's encoding can hold. Line ends and tabs are text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_terminal(text: str) -> str:
    """Untrusted text (of a registry, a package, a tool) as a terminal can safely show it.

    Control characters become their escapes; line ends stay.
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def escape_line(text: str) -> str:
    """The same for a value within a line, which must not add lines or columns."""
    return escape_terminal(text.replace("\n", "\\n").replace("\t", " "))


def format_count(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_bytes(count: float, *, number_format: str = ".4g") -> str:
    """Bytes in powers of 1024 with up to four digits: `512 MiB`, `1.234 GiB`.

    Columns of a table want `.1f` as number_format.
    """
    for unit, name in (
        (1 << 50, "PiB"),
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ):
        if count >= unit:
            return f"{count / unit:{number_format}} {name}"
    return f"{count:.0f} B"
