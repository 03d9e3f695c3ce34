"""What the source of the user's program says around a line. Reads files; a line of a file that is
absent or no Python is around nothing."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import Frame

_ON_RANK = re.compile(r"rank|main_process|is_master|is_global_zero", re.IGNORECASE)
_COLLECTIVE = re.compile(
    r"all_\w+|barrier|broadcast\w*|reduce\w*|gather\w*|scatter\w*|wait_for_everyone"
)


@functools.lru_cache(maxsize=64)
def _tree(path: str) -> ast.AST:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Pass()


def _around(frame: Frame, *kinds: type) -> list[Any]:
    """The nodes of these kinds that contain a line, the outermost first."""
    nodes: list[Any] = [node for node in ast.walk(_tree(frame.file)) if isinstance(node, kinds)]
    return [node for node in nodes if node.lineno <= frame.line <= (node.end_lineno or 0)]


def is_in_handler(frame: Frame) -> bool:
    return bool(_around(frame, ast.ExceptHandler)) and frame.is_user


def is_in_while(frame: Frame) -> bool:
    """Whether the innermost loop around the line is a while loop."""
    return isinstance([None, *_around(frame, ast.While, ast.For)][-1], ast.While)


def rank_condition(frame: Frame) -> str:
    """`rank == 0` of the innermost `if` on a rank around the line; empty if there is none."""
    tests = [ast.unparse(node.test) for node in _around(frame, ast.If)]
    return next((test for test in tests[::-1] if _ON_RANK.search(test)), "")


def guarded_collective(frame: Frame) -> int:
    """The line of the first collective in a file that an `if` on a rank guards; 0 if there is none."""
    for node in ast.walk(_tree(frame.file)):
        if isinstance(node, ast.If) and _ON_RANK.search(ast.unparse(node.test)):
            for call in (inner for statement in node.body for inner in ast.walk(statement)):
                name = getattr(getattr(call, "func", None), "attr", "")
                if isinstance(call, ast.Call) and _COLLECTIVE.fullmatch(name):
                    return call.lineno
    return 0


def loop_end(frame: Frame) -> int:
    """The last line of the outermost for loop around a line of its function; 0 if there is none."""
    scopes = _around(frame, ast.FunctionDef, ast.ClassDef)
    start = scopes[-1].lineno if scopes else 0
    ends = [node.end_lineno for node in _around(frame, ast.For) if node.lineno > start]
    return ends[0] if ends else 0


def early_return(frame: Frame) -> int:
    """The line of a conditional `return` before this line in its function; 0 if there is none."""
    conditions = [
        node
        for function in _around(frame, ast.FunctionDef)[-1:]
        for node in ast.walk(function)
        if isinstance(node, ast.If)
    ]
    nodes = [inner for condition in conditions for inner in ast.walk(condition)]
    lines = [node.lineno for node in nodes if isinstance(node, ast.Return)]
    return max((line for line in lines if line < frame.line), default=0)
