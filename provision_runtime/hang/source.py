"""What the source of the user's program says around a line. Reads files; a line of a file that is
absent or no Python is around nothing."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .model import Frame

RANK_WORDS = ("rank", "main_process", "is_master", "is_global_zero")
COLLECTIVES = frozenset(
    "all_gather all_gather_into_tensor all_gather_object all_reduce barrier broadcast all_to_all "
    "broadcast_object_list gather gather_object reduce reduce_scatter reduce_scatter_tensor scatter "
    "wait_for_everyone monitored_barrier".split()
)


@functools.lru_cache(maxsize=64)
def _tree(path: str) -> ast.Module:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _around(frame: Frame) -> Iterator[ast.AST]:
    """The statements that contain a line, the outermost first."""
    for node in ast.walk(_tree(frame.file)):
        if isinstance(node, (ast.stmt, ast.ExceptHandler)) and _contains(node, frame.line):
            yield node


def _contains(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
    return first <= line <= last


def is_in_handler(frame: Frame) -> bool:
    return frame.is_user and any(isinstance(node, ast.ExceptHandler) for node in _around(frame))


def is_in_while(frame: Frame) -> bool:
    """Whether the innermost loop around the line is a while loop."""
    loops = [node for node in _around(frame) if isinstance(node, (ast.While, ast.For))]
    return bool(loops) and isinstance(loops[-1], ast.While)


def rank_condition(frame: Frame) -> str:
    """`rank == 0` of the innermost `if` on a rank around the line; empty if there is none."""
    condition = ""
    for node in _around(frame):
        if isinstance(node, ast.If) and _is_on_rank(node.test):
            branch = any(_contains(child, frame.line) for child in node.body)
            text = ast.unparse(node.test) if hasattr(ast, "unparse") else "a rank"
            condition = text if branch else f"not ({text})"
    return condition


def _is_on_rank(test: ast.expr) -> bool:
    names = [getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(test)]
    return any(word in name.lower() for name in names for word in RANK_WORDS)


def guarded_collectives(path: str) -> list[int]:
    """The lines of collectives that only some ranks reach, because of an `if` on a rank."""
    lines = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.If) and _is_on_rank(node.test):
            for child in (inner for statement in node.body for inner in ast.walk(statement)):
                if isinstance(child, ast.Call) and getattr(child.func, "attr", "") in COLLECTIVES:
                    lines.append(child.lineno)
    return sorted(set(lines))


def loop_end(frame: Frame) -> int:
    """The last line of the outermost for loop around a line of its function; 0 if there is none."""
    inner: list[ast.AST] = []
    for node in _around(frame):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        inner = [] if is_function else [*inner, node]
    loops = [node for node in inner if isinstance(node, ast.For)]
    return getattr(loops[0], "end_lineno", 0) if loops else 0


def early_return(frame: Frame) -> int:
    """The line of a conditional `return` before this line in its function; 0 if there is none."""
    function = None
    for node in _around(frame):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node
    returns = [
        inner.lineno
        for node in (ast.walk(function) if function else ())
        if isinstance(node, ast.If)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Return) and inner.lineno < frame.line
    ]
    return max(returns, default=0)
