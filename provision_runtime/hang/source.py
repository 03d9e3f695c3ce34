"""What the source of the user's program says around a line. Reads files; a line of a file that is
absent or no Python is around nothing."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..doctor.program_source import LOOPS, Program, read_program
from ..doctor.programs import one_sided_calls

if TYPE_CHECKING:
    from .model import Frame

_WORK = re.compile(
    r"all_\w+|barrier|broadcast\w*|reduce\w*|gather\w*|scatter\w*|wait_for_everyone|backward|step|save"
    r"|train\w*|eval\w*"
)
_EXIT = re.compile(r"(?:sys\.|os\._)?(?:exit|quit)\((?:0|None)?\)")
_LEAVES = re.compile(r"\b(?:raise|return|break|\w*exit)\b")
_BLOCKS = (ast.FunctionDef, ast.ClassDef)


@functools.lru_cache(maxsize=64)
def _program(path: str) -> Program:
    try:
        return read_program(Path(path))
    except (OSError, SyntaxError, ValueError):
        return Program("", "", [], ast.Module([], []), {}, {}, [], {})


def _around(frame: Frame, *kinds: type) -> list[Any]:
    """The nodes of these kinds that contain a line, the innermost first."""
    nodes: list[Any] = [n for n in ast.walk(_program(frame.file).tree) if isinstance(n, kinds)]
    return [node for node in nodes if node.lineno <= frame.line <= (node.end_lineno or 0)][::-1]


def _has(statements: list[Any], line: int) -> bool:
    """Whether a line is in consecutive statements."""
    return bool(statements and statements[0].lineno <= line <= statements[-1].end_lineno)


def _loop(frame: Frame) -> Any:
    """The innermost loop around a line of its function, or None."""
    blocks = _around(frame, *LOOPS, *_BLOCKS)
    return blocks[0] if blocks and isinstance(blocks[0], LOOPS) else None


def is_in_handler(frame: Frame) -> bool:
    return bool(_around(frame, ast.ExceptHandler)) and frame.is_user


def loop(frame: Frame) -> range:
    """The lines of the innermost loop around a line of its function; none without a loop."""
    node = _loop(frame)
    return range(node.lineno, node.end_lineno + 1) if node else range(0)


def polling_loop(frame: Frame | None) -> tuple[str, int] | None:
    """The file and line of the loop around a line, if it only sleeps and looks at something. One that
    trains or makes a collective is none."""
    loop: Any = frame and _loop(frame)
    if not frame or not loop:
        return None
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    source = _program(frame.file).source
    names = [source(call.func).rpartition(".")[2] for call in calls]
    is_polling = "sleep" in names and not any(map(_WORK.fullmatch, names))
    return (frame.file, loop.lineno) if is_polling else None


def has_left_try(frame: Frame, line: int) -> bool:
    """Whether a line of the same function is in an `except` or the `finally` of a try whose body a
    frame is in."""
    return any(
        _has(node.body, frame.line) and (_has(node.handlers, line) or _has(node.finalbody, line))
        for node in _around(frame, ast.Try)
    )


def condition(frame: Frame, line: int, is_on_rank: bool) -> tuple[str, bool]:
    """`rank == 0`, or `not (rank == 0)`, of the innermost `if` that leads to a frame, and not to a line
    of the same function (0: the function is not entered); empty if there is none. And whether that line
    is in its other branch.

    is_on_rank: only those that choose ranks.
    """
    program = _program(frame.file)
    for node in _around(frame, ast.If):
        is_body = _has(node.body, frame.line)
        side, other = (node.body, node.orelse) if is_body else (node.orelse, node.body)
        is_fork = _has(side, frame.line) and not _has(side, line)
        if is_fork and (not is_on_rank or program.side(node.test)):
            test = program.source(node.test)
            return test if is_body else f"not ({test})", _has(other, line)
    return "", False


def guarded_collective(frame: Frame) -> int:
    """The line of the first call in a file that is, or leads to, a collective of some ranks only; 0 if
    there is none."""
    calls = one_sided_calls(_program(frame.file))
    return min((node.lineno for _, node, _ in calls), default=0)


def skip(frame: Frame) -> int:
    """The line that ends a step of the loop around a frame early, on a condition or after an exception;
    0 if there is none. Steps that are skipped by their number are skipped on all ranks."""
    loop, source = _loop(frame), _program(frame.file).source
    nodes: list[Any] = list(ast.walk(loop)) if loop else []
    for node in nodes:
        if isinstance(node, ast.Try) and _has(node.body, frame.line):
            for handler in node.handlers:
                if not any(_LEAVES.search(source(statement)) for statement in handler.body):
                    return handler.lineno
        is_skip = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue)
        if is_skip and node.lineno < frame.line and "%" not in source(node.test):
            return int(node.lineno)
    return 0


def _conditional(frame: Frame, kind: type) -> list[Any]:
    """The nodes of a kind below an `if` in the loop around a line; without a loop those before the line
    in its function or file."""
    loop = _loop(frame)
    scope = loop or next(iter(_around(frame, ast.FunctionDef)), _program(frame.file).tree)
    statements = [item for item in scope.body if not isinstance(item, _BLOCKS)]
    inner = [node for statement in statements for node in ast.walk(statement)]
    conditions = [node for node in inner if isinstance(node, ast.If)]
    nodes: list[Any] = [inner for condition in conditions for inner in ast.walk(condition)]
    nodes = [node for node in nodes if isinstance(node, kind)]
    return [node for node in nodes if loop or node.lineno < frame.line]


def early_return(frame: Frame) -> int:
    """The line of a conditional `return` in the loop around a line, else before it in its function; 0
    if there is none."""
    return max((int(node.lineno) for node in _conditional(frame, ast.Return)), default=0)


def early_exit(frame: Frame) -> int:
    """The same of the program's end without an error, such as `sys.exit(0)`."""
    calls, source = _conditional(frame, ast.Call), _program(frame.file).source
    return next((int(call.lineno) for call in calls if _EXIT.fullmatch(source(call))), 0)
