"""A training program as a syntax tree.

Conditions on the rank are read from their text; names that the program gives to them count, too.
"""

from __future__ import annotations

import ast
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]

Scope = Union[Function, ast.Module]

# The two sides of a condition: one rank (of all, or of a node), and all others.
ONE, OTHERS = "one", "others"
# Ranks within a smaller group (tp_rank, dp_rank) are none: such groups are built to fit.
RANK = (
    r"(?:\b(?:(?:ddp|dist|my|this|proc)_?)?(?:(?:global|world|local|node|process|machine)_?)?"
    r"(?:rank|RANK|process_index)(?![\w(])|\b(?:get_(?:(?:global|local|world)_)?|local_)?rank\(\)"
    r"|\b(?:int\()?os\.(?:environ\[|environ\.get\(|getenv\()['\"](?:(?:LOCAL_|GLOBAL_)?RANK|"
    r"SLURM_PROCID|SLURM_LOCALID)['\"](?:, *['\"]?-?\d+['\"]?)?[\])]\)?)"
)
IS_ONE = (
    r"\b(?:is|on|am)_?(?:local_|global_|world_)?(?:main|master|primary|chief|root|process_zero|zero)"
    r"(?:_?(?:process|proc|rank|node|worker))?(?:_?(?:0|zero))?\b"
    r"|\b(?:local_|global_|world_)?(?:main|master|primary|chief)_(?:process|proc|rank|worker)\b"
    r"|\b(?:is_)?(?:local_|global_|world_)?(?:rank|process)_?(?:0|zero)\b"
)
# True without other ranks: `not distributed`, `world_size == 1`, `rank == -1`.
_ALONE = (
    r"\bnot\b.*(?:distrib|ddp|is_initialized|is_available|multi_?(?:gpu|proc|node))"
    r"|(?:world_?size|num_processes|n_?gpus?|num_gpus)\w*(?:\(\))? *(?:==|<|<=) *[12]\b"
    r"|(?:rank|gpu|device) *(?:==|is) *(?:-1|None)"
)
_OTHERS = (
    (
        r"@R *(?:!=|>|is not) *['\"]?0|@R *>= *1\b|@R not in [\[({](?:-1, )?0"
        r"|\bnot \(?(?:\w+\.)*(?:@I)|\bnot \(?@R *== *0|^(?:\w+\.)*@R$"
    )
    .replace("@R", RANK)
    .replace("@I", IS_ONE)
)
_ONE = (
    (
        r"@R *(?:==|is|<=) *['\"]?(?:\d+|\w+ - 1)\b|\b0 *== *@R|@R *% *\w+ *== *0|@R *< *1\b"
        r"|\bnot @R(?: |$)|@R in [\[({](?:-1, )?0(?:, -1)?,?[\])}]|@I"
    )
    .replace("@R", RANK)
    .replace("@I", IS_ONE)
)
# `name = value`, and `def name(): ... return value`.
_ASSIGNMENT = r"(?m)^[ \t]*(?:\w+\.)*(\w+) *(?::[^=\n]+)?= *(\S.*)$"
_RETURN = r"(?m)^[ \t]*def (\w+)\((?:.*\n){0,9}?.*\breturn (\S.*)$"


@dataclass(frozen=True, eq=False)
class Program:
    """functions: by what their calls look like: `f`, `self.f`, and the class for `__init__`.

    assigned: the values of variables and attributes, and what functions return, as text.
    """

    name: str
    text: str
    lines: List[str]
    tree: ast.Module
    parents: Dict[ast.AST, ast.AST]
    functions: Dict[str, List[Function]]
    calls: List[ast.Call]
    assigned: Dict[str, List[str]]

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node on one line."""
        # ast.get_source_segment splits the whole text for each.
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
        return " ".join("\n".join(lines).encode()[node.col_offset :].decode().split())

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The function around a node, or the module."""
        return next(
            item for item in self.ancestors(node) if isinstance(item, (*FUNCTIONS, ast.Module))
        )

    def has(self, pattern: str) -> bool:
        return re.search(pattern, self.text) is not None

    def side(self, test: ast.expr | str, depth: int = 2) -> str:
        """Which ranks a condition holds for: ONE, OTHERS, or "" if it is not about ranks."""
        text = test if isinstance(test, str) else self.source(test)
        parts = text.split(" or ")
        if len(parts) > 1:
            parts = [part.strip("() ") for part in parts if not re.search(_ALONE, part)]
        if len(parts) != 1 or re.search(rf"\band\b.*(?:{_ALONE})", text):
            return ""
        if re.search(_OTHERS, parts[0]):
            return OTHERS
        if re.search(_ONE, parts[0]):
            return ONE
        # A name of the program for such a condition, or for the rank.
        names = r"(not )?\b([\w.]+)(?:\([\w.]*\))?( *[!=]= *0)?(?: and |$)"
        for name in re.finditer(names, parts[0]) if depth else ():
            for value in self.assigned.get(name[2].split(".")[-1], []):
                kind = self.side(value + (name[3] or ""), depth - 1)
                if kind and (name[3] or not re.fullmatch(rf"(?:\w+\.)*{RANK}", value)):
                    return {ONE: OTHERS, OTHERS: ONE}[kind] if name[1] else kind
        return ""


def read_program(path: Path) -> Program:
    """Raises SyntaxError or ValueError for a file that is no program, OSError if it cannot be
    opened."""
    with tokenize.open(path) as file:
        lines = re.split(r"\r\n|\r|\n", file.read())
    text = "\n".join(lines)
    program = Program(path.name, text, lines, ast.parse(text, path.name), {}, {}, [], {})
    for name, value in re.findall(_ASSIGNMENT, text) + re.findall(_RETURN, text):
        program.assigned.setdefault(name, []).append(value.partition("  #")[0])
    for node in ast.walk(program.tree):
        program.parents.update((child, node) for child in ast.iter_child_nodes(node))
        if isinstance(node, FUNCTIONS):
            owner = program.parents[node]
            key = f"self.{node.name}" if isinstance(owner, ast.ClassDef) else node.name
            key = getattr(owner, "name", "") if node.name == "__init__" else key
            program.functions.setdefault(key, []).append(node)
        elif isinstance(node, ast.Call):
            program.calls.append(node)
    return program


def walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """What runs when these nodes run, in order: not the bodies of functions and classes in them."""
    for node in nodes:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from walk(ast.iter_child_nodes(node))
