"""setup.cfg and setup.py. A setup.py is read, and never run: lists, names, sums of them and the files
that it opens. What only running it would tell is named.
"""

from __future__ import annotations

import ast
import configparser
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from provision.core.errors import InvalidSpec
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Statement
from provision.project_files.rules import table
from provision.project_files.toml_file import Selection

_FILE = re.compile(r"[\w./-]+\.(?:txt|in)")
_FOLDER = re.compile(r"[\w-]*requirements[\w-]*")


class _Item(NamedTuple):
    """A text, the name of a file of requirements, or an expression that only running the program
    computes."""

    line: int | None
    text: str
    form: Literal["text", "file", "computed"] = "text"


# A keyword of `setup()`, the extra in `extras_require`, and the items.
_Keyword = tuple[str, str, list[_Item]]


def _statements(
    file: str, keywords: Iterable[_Keyword], selection: Selection
) -> Iterator[Statement]:
    for keyword, extra, items in keywords:
        kind = table("setuptools").get(keyword)
        for number, (line, written, form) in enumerate(items if kind else ()):
            statement = Statement(file=file, line=line, text=written, kind=kind, value=written)
            if extra and not selection.takes("extra", extra):
                members = [item.text for item in items]
                if number == 0:
                    offer = statement.because("", kind="ignored")
                    yield selection.offer(offer, "extra", extra, members)
            elif kind == "ignored":
                yield statement.because("it is needed to build or test the project, not to use it")
            elif form == "file" and kind == "pip":
                yield statement.because(f"{file} reads it for {keyword}", kind="include")
            elif form != "text":
                name = "arguments" if keyword == "**" else keyword
                yield statement.because(
                    f"{name} is computed when {file} runs, and it is not run",
                    f"uv pip compile {file} --output-file requirements.txt",
                    kind="unknown",
                )
            elif kind == "pip":
                yield from parse_lines(written, file, line)
            else:
                yield statement


def cfg_statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a setup.cfg states. Raises InvalidSpec if it is malformed."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text, file)
    except configparser.Error as error:
        raise InvalidSpec(
            f"{file} is not a setup.cfg: {error.message.splitlines()[0]}",
            advice="Correct the file.",
        ) from error
    keywords: list[_Keyword] = []
    for section in ("metadata", "options", "options.extras_require"):
        for option, value in parser[section].items() if section in parser else ():
            items = _listed(value.strip(), text)
            if section == "options.extras_require":
                keywords.append(("extras_require", option, items))
            else:
                keywords.append((option.replace("-", "_"), "", items))
    return list(_statements(file, keywords, selection))


def _listed(value: str, text: str) -> list[_Item]:
    """A list of setup.cfg: an item a line, items separated by semicolons, or files that have it."""
    is_file = value.startswith("file:")
    # A semicolon may belong to a marker.
    is_marked = re.search(r";\s*\w+\s*(?:[<>=!~]=?|in\b|not\b)\s*['\"]", value)
    separator = "\n" if "\n" in value or is_marked else ";"
    items = []
    for part in value.removeprefix("file:").split("," if is_file else separator):
        item = re.sub(r"(^|\s)#.*", "", part).strip()
        if item:
            match = re.search(rf"(?<![\w-]){re.escape(item)}", text)
            line = text.count("\n", 0, match.start()) + 1 if match else None
            items.append(_Item(line, item, "file" if is_file else "text"))
    return items


def setup_py_statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a setup.py states. Raises InvalidSpec if it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the program's style
            tree = ast.parse(text)
        keywords = list(_Program(text, tree).setup_keywords())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InvalidSpec(
            f"{file} cannot be read as a program of Python 3: {error}.",
            advice="Write its requirements into a requirements.txt.",
        ) from error
    return list(_statements(file, keywords, selection))


class _Program:
    """A program's names. values: the expressions whose sum a name is; a statement stands for one that
    changes the name under a condition, or in a form that is not read."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text = text
        self.tree = tree
        self.values: dict[str, list[ast.AST]] = {}
        self.functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        self._collect(tree, is_conditional=False)

    def _collect(self, block: ast.AST, *, is_conditional: bool) -> None:
        """Note the assignments of a block, and of the blocks in it."""
        if isinstance(block, (ast.If, ast.For, ast.While, ast.Try)):
            is_main = isinstance(block, ast.If) and "__name__" in ast.unparse(block.test)
            is_conditional = is_conditional or not is_main
        for node in ast.iter_child_nodes(block):
            name, value, is_new = _assignment(node)
            if value is not None:
                names = {part.id for part in ast.walk(value) if isinstance(part, ast.Name)}
                is_computed = is_conditional or name in names
                if is_new and not is_computed:
                    self.values[name] = []
                self.values.setdefault(name, []).append(node if is_computed else value)
            self._collect(node, is_conditional=is_conditional)

    def setup_keywords(self) -> Iterator[_Keyword]:
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call) or not (node.keywords or node.args):
                continue
            if ast.unparse(node.func).rpartition(".")[2] == "setup":
                for token in node.keywords:
                    keyword = token.arg or "**"
                    entries: dict[str, ast.AST] = {"": token.value}
                    if keyword == "extras_require":
                        entries = self._entries(token.value)
                    for extra, value in entries.items():
                        yield keyword, extra, self._items(value)
                return

    def _entries(self, node: ast.AST) -> dict[str, ast.AST]:
        """The entries of a dictionary by their names; what only running the program tells has an
        empty one."""
        if isinstance(node, ast.Name) and node.id in self.values:
            parts = [self._entries(part) for part in self.values[node.id]]
            return {name: value for part in parts for name, value in part.items()}
        if not isinstance(node, ast.Dict):
            return {"": node}
        names = [str(key.value) if isinstance(key, ast.Constant) else "" for key in node.keys]
        return dict(zip(names, node.values, strict=True))

    def _items(self, node: ast.AST) -> list[_Item]:
        """The items of a list; of a text, it alone; of a dictionary, those of its entries."""
        parts: Iterable[ast.AST] = ()
        match node:
            case ast.Constant(value=str(text)):
                return [_Item(node.lineno, text)]
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return [item for element in elements for item in self._elements(element)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                # A sum with a text is a text.
                if not isinstance(left, ast.Constant) and not isinstance(right, ast.Constant):
                    parts = [left, right]
            case ast.Name(id=name):
                parts = self.values.get(name, ())
            case ast.Dict(values=values):
                parts = values
            case ast.Subscript(value=dictionary, slice=ast.Constant(value=key)):
                entries = self._entries(dictionary)
                parts = [entries[key]] if key in entries else ()
        if parts:
            return [item for part in parts for item in self._items(part)]
        line = getattr(node, "lineno", None)
        files = dict.fromkeys(self._files(node, ()))
        return [_Item(line, name, "file") for name in files] or [self._computed(node)]

    def _elements(self, node: ast.AST) -> list[_Item]:
        """The items that an element of a list stands for."""
        if isinstance(node, ast.Starred):
            return self._items(node.value)
        is_read = isinstance(node, (ast.Constant, ast.Name, ast.Subscript))
        return self._items(node) if is_read else [self._computed(node)]

    def _computed(self, node: ast.AST) -> _Item:
        source = ast.get_source_segment(self.text, node) or ast.unparse(node)
        return _Item(getattr(node, "lineno", None), " ".join(source.split()), "computed")

    def _files(self, node: ast.AST, including: tuple[str, ...]) -> Iterator[str]:
        """Names of files in an expression, in the functions that it calls, and in the values of its
        names."""
        folder = ""
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                if _FILE.fullmatch(part.value):
                    yield folder + part.value
                elif _FOLDER.fullmatch(part.value):
                    folder += f"{part.value}/"
            elif isinstance(part, ast.Name) and part.id not in including:
                for inner in (self.functions.get(part.id), *self.values.get(part.id, ())):
                    if inner is not None:
                        yield from self._files(inner, (*including, part.id))


def _assignment(node: ast.AST) -> tuple[str, ast.expr | None, bool]:
    """The name that a statement changes; the value, None of a statement that changes none; and
    whether that replaces what the name had."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=value)
            | ast.withitem(optional_vars=ast.Name(id=name), context_expr=value)
        ):
            return name, value, True
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            return name, value, False
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=key)], value=value):
            return name, ast.Dict(keys=[key], values=[value]), False
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[value])
        ):
            if method == "append":
                return name, ast.List(elts=[value], ctx=ast.Load()), False
            if method in ("extend", "update"):
                return name, value, False
    return "", None, False
