"""The Python of .python-version (pyenv, uv), .tool-versions (asdf, mise) and runtime.txt (Binder)."""

from __future__ import annotations

import re

from provision.core.statements import Kind, Statement
from provision.project_files.toml_file import Selection

_VERSION = re.compile(r"(?:python|cpython)?[-@ ]?\s*(\d+\.\d+)(\.\d+\w*)?t?(?:-.*)?")


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What such a file states; the first version counts, as in pyenv."""
    result: list[Statement] = []
    for number, line in enumerate(text.splitlines(), 1):
        written = line.partition("#")[0].strip()
        if not written:
            continue
        tool = file.endswith(".tool-versions") and not written.startswith("python ")
        match = _VERSION.fullmatch(written.split(" /")[0])
        kind: Kind = "unknown"
        value, reason = "", "it is no version of Python"
        if tool:
            kind, reason = "ignored", "it is another tool than Python"
        elif match and any(statement.kind == "python" for statement in result):
            kind, reason = "ignored", "the first version is the one that python starts"
        elif match:
            kind, value = "python", f"=={match[1]}{match[2] or '.*'}"
            reason = "an environment has the newest patch release" if match[2] else ""
        result.append(
            Statement(file=file, line=number, text=written, kind=kind, value=value, reason=reason)
        )
    return result
