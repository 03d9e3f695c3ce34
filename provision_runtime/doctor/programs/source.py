"""A training program as a syntax tree, with the modules that lie in its folder.

Reads Python files, and the code cells of notebooks.
"""

from __future__ import annotations

import ast
import json
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Set, Tuple, Union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Scope = Union[Function, ast.Module]
# The most modules that are read with a program.
MOST_MODULES = 20
LOOPS = (ast.For, ast.AsyncFor, ast.While)


class SourceError(Exception):
    """A program cannot be read: why, and in which line (0: as a whole)."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Program:
    """text: of the file alone; trees: of the file, then of the modules beside it that it imports.

    functions, classes: by name, from all trees. assigned: the values of a variable or attribute.
    names: all that occur. modules: all imports, with what is taken from them. aliases: names that
    modules have here. reached: see ranks.reached. cells: of a notebook, the first line of each in `text`.
    """

    name: str
    text: str
    lines: List[str]
    trees: List[ast.Module]
    functions: Dict[str, List[Function]]
    classes: Dict[str, List[ast.ClassDef]]
    parents: Dict[ast.AST, ast.AST]
    calls_by_name: Dict[str, List[ast.Call]]
    assigned: Dict[str, List[ast.expr]]
    names: Set[str]
    modules: Set[str]
    aliases: Dict[str, str]
    reached: Dict[Tuple[Function, str], List[str]]
    cells: List[int]

    def position(self, line: int) -> str:
        """`train.py:12`; in a notebook `train.ipynb:cell 3:2`, with cells of code counted from 1."""
        starts = [start for start in self.cells if start <= line]
        if not starts:
            return f"{self.name}:{line}"
        return f"{self.name}:cell {len(starts)}:{line - starts[-1] + 1}"

    def line(self, number: int) -> str:
        return self.lines[number - 1].strip()

    def source(self, node: ast.expr) -> str:
        """The text of an expression of the file, on one line."""
        # ast.get_source_segment splits the whole text for each.
        lines = [line.encode() for line in self.lines[node.lineno - 1 : node.end_lineno]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode().split())

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The function around a node, or the module."""
        around = (item for item in self.ancestors(node) if isinstance(item, (*FUNCTIONS, ast.Module)))
        return next(around)

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls in the file of what has one of these names, in order."""
        calls = [call for name in names for call in self.calls_by_name.get(name, [])]
        return sorted(calls, key=lambda call: (call.lineno, call.col_offset))

    def definitions(self, call: ast.Call) -> list[Function]:
        """The functions of the program that a call runs; empty if that is not certain."""
        name = last_name(call.func)
        functions = self.functions.get(name, [])
        if isinstance(call.func, ast.Name):
            classes = self.classes.get(name, [])
            makers = self.functions.get("__init__", []) if classes else []
            made = [item for item in makers if self.parents[item] in classes]
            return made + [item for item in functions if not self._is_method(item)]
        owner = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if owner in ("self", "cls"):
            around = [item for item in self.ancestors(call) if isinstance(item, ast.ClassDef)]
            return [item for item in functions if self.parents[item] in around]
        return functions if len(functions) == 1 and not name.startswith("__") else []

    def _is_method(self, function: Function) -> bool:
        return isinstance(self.parents[function], ast.ClassDef)


def read_program(path: Path) -> Program:
    """Raises SourceError for a file that is no Python, OSError for one that cannot be read."""
    cells: list[int] = []
    if path.suffix == ".ipynb":
        text, cells = _notebook(path.read_bytes())
    else:
        try:
            with tokenize.open(path) as file:
                text = file.read()
        except (SyntaxError, UnicodeDecodeError) as error:
            raise SourceError(f"its encoding cannot be read: {error}") from error
    try:
        trees = [ast.parse(text)]
    except SyntaxError as error:
        raise SourceError(error.msg, error.lineno or 0) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SourceError(str(error)) from error
    trees += _neighbors(path, trees[0])
    program = Program(path.name, text, _lines(text), trees, {}, {}, {}, {}, {}, set(), set(), {}, {}, cells)
    for tree in trees:
        for node in ast.walk(tree):
            program.parents.update((child, node) for child in ast.iter_child_nodes(node))
            _register(program, node)
            if isinstance(node, ast.Call) and tree is trees[0]:
                program.calls_by_name.setdefault(last_name(node), []).append(node)
    return program


def _lines(text: str) -> list[str]:
    """The lines as Python counts them: a form feed ends none."""
    return re.split(r"\r\n|\r|\n", text)


def _register(program: Program, node: ast.AST) -> None:
    if isinstance(node, FUNCTIONS):
        program.functions.setdefault(node.name, []).append(node)
    elif isinstance(node, ast.ClassDef):
        program.classes.setdefault(node.name, []).append(node)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            program.assigned.setdefault(last_name(target), []).append(node.value)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None)
        for item in node.names:
            program.modules.add(f"{module}.{item.name}" if module else item.name)
            program.names.update(item.name.split("."))
            if item.asname:
                program.aliases[item.asname] = item.name.rpartition(".")[2]
    program.names.add(last_name(node))


def _notebook(content: bytes) -> tuple[str, list[int]]:
    """The code of a notebook, and the first line of each cell. Lines for IPython become `pass`."""
    try:
        cells = json.loads(content)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"it is no notebook of format 4: {error!r}") from error
    lines: list[str] = []
    starts = []
    for source in sources:
        starts.append(len(lines) + 1)
        is_foreign = re.match(r"\s*%%(?!time|capture|prun)", source) is not None
        pattern = r"^(\s*).*" if is_foreign else r"^(\s*)[%!?].*"
        lines += [re.sub(pattern, r"\1pass", line) for line in source.split("\n")]
    return "\n".join(lines) + "\n", starts


def _neighbors(path: Path, tree: ast.Module) -> Iterator[ast.Module]:
    """The modules in the program's folder, or package, that it imports, directly
    or from the `__init__.py` of a package."""
    roots = [path.parent]
    while (roots[-1] / "__init__.py").is_file():
        roots.append(roots[-1].parent)
    read = {path}
    waiting = [(path.parent, tree)]
    while waiting and len(read) <= MOST_MODULES:
        folder, importer = waiting.pop(0)
        for name in _imported(importer):
            parts = [part for part in name.split(".") if part]
            stems = [root.joinpath(*parts) for root in (folder, *roots)] if parts else []
            files = [file for stem in stems for file in (f"{stem}.py", stem / "__init__.py")]
            file = next((item for item in map(Path, files) if item.is_file()), path)
            if file in read:
                continue
            read.add(file)
            try:
                module = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, OSError):
                continue
            if file.name == "__init__.py":
                waiting.append((file.parent, module))
            yield module


def _imported(tree: ast.Module) -> list[str]:
    """The modules that a module imports, and the names that it takes from them."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [module, *(f"{module}.{item.name}" for item in node.names)]
        elif isinstance(node, ast.Import):
            names += [item.name for item in node.names]
    return list(dict.fromkeys(names))


def last_name(node: ast.AST) -> str:
    """`barrier` of `dist.barrier`, of `barrier` and of `dist.barrier()`; else ""."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def constant(node: ast.AST | None) -> object:
    """The value of a literal; None for all else. `-1` is one, too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int) else None
    return node.value if isinstance(node, ast.Constant) else None


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {item.arg: item.value for item in call.keywords if item.arg}


def walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """What runs when these nodes run, in order: not the bodies of functions and classes in them."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting += list(ast.iter_child_nodes(node))[::-1]
