"""The Python of .python-version (pyenv, uv), .tool-versions (asdf, mise) and runtime.txt (Binder)."""

from __future__ import annotations

import re
from dataclasses import replace

from provision.core.statements import Statement
from provision.project_files.toml_file import Selection

_VERSION = re.compile(r"(?:python|cpython)?[-@ ]?\s*(\d+\.\d+)(\.\d+\w*)?t?(?:-.*)?")


def statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What such a file states; the first version counts, as in pyenv."""
    result: list[Statement] = []
    for number, line in enumerate(text.splitlines(), 1):
        written = line.partition("#")[0].strip()
        statement = Statement(file=file, line=number, text=written, kind="ignored")
        version = _VERSION.fullmatch(written.split(" /")[0])
        if file.endswith(".tool-versions") and not written.startswith("python "):
            statement = statement.because("it is another tool than Python")
        elif version is None:
            statement = statement.because("it is not a version of Python", kind="unknown")
        elif any(earlier.kind == "python" for earlier in result):
            statement = statement.because("the first version is the one that python starts")
        else:
            reason = "an environment has the newest patch release" if version[2] else ""
            value = f"=={version[1]}{version[2] or '.*'}"
            statement = replace(statement, kind="python", value=value, reason=reason)
        result += [statement] if written else []
    return result
