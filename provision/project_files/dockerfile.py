"""A Dockerfile's base images, and what it installs by pip and conda: notes, which decide nothing."""

from __future__ import annotations

import re

from provision.core.statements import Statement

_CONTINUED = re.compile(r"\\\n(?:\s*#.*\n)*")  # with the comments between
_LOGICAL_LINE = re.compile(rf"^(?:.*{_CONTINUED.pattern})*.*$", re.MULTILINE)
_INSTALLING = r"(?:pip[\d.]*|(?:micro)?mamba|conda)\b.*\b(?:install|create|update)\b"
_NOTED = re.compile(rf"FROM\s|[^#]*\b{_INSTALLING}", re.IGNORECASE)


def statements(file: str, text: str, selection: object) -> list[Statement]:
    """What a Dockerfile states."""
    notes = []
    for match in _LOGICAL_LINE.finditer(text):
        line = " ".join(_CONTINUED.sub(" ", match[0]).split())
        if _NOTED.match(line):
            is_image = line.upper().startswith("FROM")
            note = Statement(
                file=file, line=text.count("\n", 0, match.start()) + 1, text=line, kind="note"
            )
            notes.append(
                note.because(
                    "a Dockerfile's lines are notes: --torch and --cuda say which build its base has"
                    if is_image
                    else "a Dockerfile's lines are notes: files of requirements state packages",
                    "" if is_image else "provision add NAME PACKAGE",
                )
            )
    return notes
