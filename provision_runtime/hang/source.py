"""What the source of the user's program says around a line. Reads files; a line of a file that is
absent or no Python is around nothing."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .model import Frame

_ON_RANK = re.compile(
    r"(?i)rank|main_process|process_index"
    r"|\b(?:is|am|on)_?(?:(?:local|global|world)_?)?(?:main|master|primary|chief|root|leader|zero)"
)
# Conditions on a rank that hold on all ranks of a distributed job.
_ON_ALL = re.compile(r"rank\w*\)? *(?:>= *0|!= *-1|> *-1|is not None)")
_COLLECTIVE = re.compile(
    r"all_\w+|barrier|broadcast\w*|reduce\w*|gather\w*|scatter\w*|wait_for_everyone"
)
_WORK = re.compile(rf"{_COLLECTIVE.pattern}|backward|step|save|train\w*|eval\w*")
_EXIT = re.compile(r"(?:sys\.|os\._)?(?:exit|quit)\((?:0|None)?\)")
_LEAVES = re.compile(r"\b(?:raise|return|break|\w*exit)\b")
_LOOPS = (ast.For, ast.While)
_text: Callable[[ast.AST], str] = getattr(ast, "unparse", ast.dump)  # since Python 3.9


@functools.lru_cache(maxsize=64)
def _tree(path: str) -> ast.AST:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Pass()


def _around(frame: Frame, *kinds: type) -> list[Any]:
    """The nodes of these kinds that contain a line, the innermost first."""
    nodes: list[Any] = [node for node in ast.walk(_tree(frame.file)) if isinstance(node, kinds)]
    nodes = [node for node in nodes if node.lineno <= frame.line <= (node.end_lineno or 0)]
    return nodes[::-1]


def _has(statements: list[Any], line: int) -> bool:
    """Whether a line is in consecutive statements."""
    return bool(statements and statements[0].lineno <= line <= statements[-1].end_lineno)


def _loop(frame: Frame) -> Any:
    """The innermost loop around a line of its function, or None."""
    around = _around(frame, *_LOOPS, ast.FunctionDef, ast.ClassDef)
    return around[0] if around and isinstance(around[0], _LOOPS) else None


def is_in_handler(frame: Frame) -> bool:
    return bool(_around(frame, ast.ExceptHandler)) and frame.is_user


def is_in_loop(frame: Frame) -> bool:
    return _loop(frame) is not None


def polling_loop(frame: Frame | None) -> tuple[str, int] | None:
    """The file and line of the loop around a line, if it only sleeps and looks at something. One that
    trains or makes a collective is none."""
    loop: Any = frame and _loop(frame)
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)] if loop else []
    names = [_text(call.func).rpartition(".")[2] for call in calls]
    is_polling = "sleep" in names and not any(map(_WORK.fullmatch, names))
    return (frame.file, loop.lineno) if frame and is_polling else None


def has_left_loop(frame: Frame, line: int) -> bool:
    """Whether a line of the same function is after the innermost loop around a frame."""
    loop = _loop(frame)
    return bool(loop and loop.end_lineno < line)


def has_left_try(frame: Frame, line: int, block: str) -> bool:
    """Whether a line of the same function is in the `handlers` or the `finalbody` of a try whose body
    a frame is in."""
    return any(
        _has(node.body, frame.line) and _has(getattr(node, block), line)
        for node in _around(frame, ast.Try)
    )


def condition(frame: Frame, line: int, is_on_rank: bool) -> str:
    """`rank == 0`, or `not (rank == 0)`, of the innermost `if` that leads to a frame, and not to a line
    of the same function (0: the function is not entered); empty if there is none.

    is_on_rank: only those that choose ranks.
    """
    for node in _around(frame, ast.If):
        test = _text(node.test)
        side = node.body if _has(node.body, frame.line) else node.orelse
        chooses = _ON_RANK.search(test) and not _ON_ALL.search(test)
        if _has(side, frame.line) and not _has(side, line) and (chooses or not is_on_rank):
            return test if side is node.body else f"not ({test})"
    return ""


def guarded_collective(frame: Frame) -> int:
    """The line of the first collective in a file that an `if` on a rank guards, or of the call of a
    function in the file that makes one; 0 if there is none."""
    nodes = list(ast.walk(_tree(frame.file)))
    functions = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and any(map(_is_collective, ast.walk(node)))
    }
    for node in nodes:
        if isinstance(node, ast.If) and _ON_RANK.search(_text(node.test)):
            for inner in (inner for statement in node.body for inner in ast.walk(statement)):
                if isinstance(inner, ast.Call):
                    name = _text(inner.func).rpartition(".")[2]
                    if _is_collective(inner) or name in functions:
                        return inner.lineno
    return 0


def _is_collective(node: ast.AST) -> bool:
    name = getattr(getattr(node, "func", None), "attr", "")
    return _COLLECTIVE.fullmatch(name) is not None


def skip(frame: Frame) -> int:
    """The line that ends a step of the loop around a frame early, on a condition or after an exception;
    0 if there is none. Steps that are skipped by their number are skipped on all ranks."""
    loop = _loop(frame)
    nodes: list[Any] = list(ast.walk(loop)) if loop else []
    for node in nodes:
        if isinstance(node, ast.Try) and _has(node.body, frame.line):
            for handler in node.handlers:
                if not _LEAVES.search(_text(handler)):
                    return handler.lineno
        is_skip = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue)
        if is_skip and node.lineno < frame.line and "%" not in _text(node.test):
            return int(node.lineno)
    return 0


def _conditional(frame: Frame, kind: type) -> list[Any]:
    """The nodes of a kind below an `if` in the loop around a line; without a loop those before the line
    in its function or file."""
    loop = _loop(frame)
    scope = loop or next(iter(_around(frame, ast.FunctionDef)), _tree(frame.file))
    statements = getattr(scope, "body", [])
    statements = [s for s in statements if not isinstance(s, (ast.FunctionDef, ast.ClassDef))]
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
    calls = _conditional(frame, ast.Call)
    return next((int(call.lineno) for call in calls if _EXIT.fullmatch(_text(call))), 0)
