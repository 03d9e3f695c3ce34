"""Nodes that answer wrongly: a script in place of each node's Python, and what it prints.

`--on exec:n[01-40]` runs the script here once for each node; those without a lie answer as they
should.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from provision_runtime.node.program import MARK
from tests.programs import write_program

IDENTITY = '"identity": ["me", "simulated"]'
FLOOD_BYTES = 1 << 30


def answered(text: str) -> str:
    """The shell command that prints an answer."""
    return f"printf '\\n%s\\n' {shlex.quote(MARK + text)}"


def with_result(text: str) -> str:
    return answered(f'{{{IDENTITY}, "result": {text}}}')


def with_error(**error: object) -> str:
    return answered(f'{{{IDENTITY}, "error": {json.dumps(error)}}}')


# What no action answers.
MALFORMED = {
    "list": answered("[]"),
    "number": answered("7"),
    "text": answered('"fit"'),
    "null": answered("null"),
    "deep list": f"printf '\\n{MARK}'; head -c 200000 /dev/zero | tr '\\0' '['; echo",
    "deep object": f"printf '\\n{MARK}'; yes '{{\"a\":' | head -n 100000 | tr -d '\\n'; echo",
    "deep result": with_result("[" * 500 + "]" * 500),
    "nan": with_result('{"unread": {}, "time": NaN}'),
    "infinity": with_result('{"unread": {}, "time": 1e999}'),
    "huge number": with_result('{"unread": {}, "time": ' + "9" * 5000 + "}"),
    "no result": answered(f"{{{IDENTITY}}}"),
    "result and error": answered(
        f'{{{IDENTITY}, "result": {{}}, "error": {{"reason": "in-use", "message": "x"}}}}'
    ),
    "result is a list": with_result("[]"),
    "result is null": with_result("null"),
    "nameless": answered('{"result": {"unread": {}, "time": 1}}'),
    "identity is a text": answered('{"identity": "n1", "result": {}}'),
    "identity is nested": answered('{"identity": [["n1"], {}], "result": {}}'),
    "unknown reason": with_error(reason="all-is-well", message="x"),
    "error is a text": answered(f'{{{IDENTITY}, "error": "x"}}'),
    "message is a number": with_error(reason="in-use", message=7),
    "message is missing": with_error(reason="in-use"),
    "reason is a list": with_error(reason=["in-use"], message="x"),
    "more in the error": with_error(reason="in-use", message="x", node="n2"),
    "other action": with_result('{"cake": true}'),
    "not json": answered("{'result': {}}"),
    "not utf-8": f'printf \'\\n{MARK}{{"result": "\\377\\376"}}\\n\'',
    "surrogate": with_result('"\\ud800"'),
    "half": answered('{"identity": ["n1"'),
    "other words": "echo Welcome",
    "nothing": "true",
    "flood of lines": f"yes | head -c {FLOOD_BYTES}",
    "flood in a line": f"head -c {FLOOD_BYTES} /dev/zero",
    "flood of errors": f"head -c {FLOOD_BYTES} /dev/zero >&2; " + with_error(),
}


def write_python(path: Path, lies: Iterable[tuple[str, str]]) -> None:
    """A command for `python:` in nodes.yml, as `PATH %h`. lies: nodes with what they run instead."""
    cases = "\n".join(f"{node}) {lie}; exit 0;;" for node, lie in lies)
    write_program(
        path,
        f"#!/bin/bash\nNODE=$1; shift\nPYTHON={shlex.quote(sys.executable)}\ncase $NODE in\n{cases}\nesac\n"
        'exec "$PYTHON" "$@"\n',
    )
