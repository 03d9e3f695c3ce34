"""setup.cfg and setup.py. A setup.py is read, and never run: lists, names, sums of them and the files
that it opens. What only running it would tell is named.
"""

from __future__ import annotations

import ast
import configparser
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Union

from provision.core.credentials import public_request
from provision.core.errors import InvalidSpec
from provision.core.package_names import package_name
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Kind, Statement
from provision.project_files.rules import table
from provision.project_files.toml_file import Selection

_FILE = re.compile(r"[\w./-]+\.(?:txt|in)")
_FOLDER = re.compile(r"[\w-]*requirements[\w-]*")


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A text, a file of requirements, or what only running the program computes. written: as the file
    has it."""

    kind: Literal["text", "file", "computed"]
    line: int | None
    written: str
    text: str = ""


# What an expression of a setup.py comes to. The entries of a dictionary whose names are computed
# stand under `**`.
_Value = Union[_Item, "list[_Item]", "dict[str, _Value]"]
# A keyword of `setup()`, its items and, in `extras_require`, the extra.
_Keyword = tuple[str, Sequence[_Item], "_Item | None"]


def _statements(
    file: str, keywords: Iterable[_Keyword], selection: Selection
) -> Iterator[Statement]:
    for keyword, items, extra in keywords:
        kind: Kind | None = table("setuptools").get(keyword)
        if kind is None or not items:
            continue
        if extra and not selection.takes("extra", extra.text):
            first = Statement(file=file, line=extra.line, text=extra.text, kind="ignored")
            members = [public_request(item.text or item.written) for item in items]
            yield selection.offer(first, "extra", extra.text, members)
            continue
        for item in items:
            statement = Statement(
                file=file,
                line=item.line,
                text=public_request(item.written),
                kind=kind,
                value=item.text,
            )
            if kind == "ignored":
                yield statement.because("it is needed to build or test the project, not to use it")
            elif item.kind == "file" and kind == "pip":
                yield statement.because(f"{file} reads it for {keyword}", kind="include")
            elif item.kind != "text":
                name = "arguments" if keyword == "**" else keyword
                yield statement.because(
                    f"{name} is computed when {file} runs, and it is not run",
                    f"uv pip compile {file} --output-file requirements.txt",
                    kind="unknown",
                )
            elif kind == "pip":
                yield from parse_lines(item.text, file, item.line)
            else:
                yield statement


def cfg_statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
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
            items = _listed(value, text)
            if section.endswith("extras_require"):
                keywords.append(("extras_require", items, _listed(option, text)[0]))
            else:
                keywords.append((option.replace("-", "_"), items, None))
    return list(_statements(file, keywords, selection or Selection()))


def _listed(value: str, text: str) -> list[_Item]:
    """A list of setup.cfg: an item a line, items separated by semicolons, or files that have it."""
    value = value.strip()
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
            kind: Literal["file", "text"] = "file" if is_file else "text"
            items.append(_Item(kind=kind, line=line, written=item, text=item))
    return items


def setup_py_statements(
    file: str, text: str, selection: Selection | None = None
) -> list[Statement]:
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
    return list(_statements(file, keywords, selection or Selection()))


class _Program:
    """A program's names. parts: the expressions whose sum a name is. computed: statements that change
    it under a condition, or in a form that is not read."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text = text
        self.tree = tree
        self.parts: dict[str, list[ast.expr]] = {}
        self.computed: dict[str, list[ast.AST]] = {}
        self.functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        self._collect(tree, is_conditional=False)

    def _collect(self, block: ast.AST, *, is_conditional: bool) -> None:
        """Note the assignments of a block, and of the blocks in it."""
        always = (ast.Module, ast.FunctionDef, ast.With, ast.withitem)
        is_main = isinstance(block, ast.If) and "__name__" in ast.unparse(block.test)
        is_conditional = is_conditional or not (isinstance(block, always) or is_main)
        for node in ast.iter_child_nodes(block):
            name, value, is_new = _assignment(node)
            if not name:
                pass
            elif value is None or is_conditional or name in _names(value):
                self.computed.setdefault(name, []).append(node)
            elif is_new:
                self.parts[name] = [value]
                self.computed.pop(name, None)
            else:
                self.parts.setdefault(name, []).append(value)
            if isinstance(node, (ast.stmt, ast.ExceptHandler)):
                self._collect(node, is_conditional=is_conditional)

    def setup_keywords(self) -> Iterator[_Keyword]:
        """The keywords of `setup()`, as `_statements` takes them."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call) or not (node.keywords or node.args):
                continue
            if ast.unparse(node.func).rpartition(".")[2] != "setup":
                continue
            for keyword, value in self._mapping(node.keywords).items():
                if keyword == "extras_require" and isinstance(value, dict):
                    for extra, requirements in value.items():
                        items = _items(requirements)
                        names = [replace(item, text=extra) for item in items if extra != "**"]
                        yield keyword, items, names[0] if names else None
                else:
                    yield keyword, _items(value), None
            return

    def _mapping(self, keywords: Sequence[ast.keyword]) -> dict[str, _Value]:
        return _merged(
            {word.arg: self._value(word.value)} if word.arg else self._value(word.value)
            for word in keywords
        )

    def _value(self, node: ast.AST) -> _Value:
        match node:
            case ast.Constant(value=str(text)):
                return self._item(node, "text", text)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [item for part in parts for item in _items(self._value(part))]
            case ast.Starred(value=part) | ast.FormattedValue(value=part, format_spec=None):
                return self._value(part)
            case ast.JoinedStr(values=parts):
                return self._sum(node, parts)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._sum(node, [left, right])
            case ast.Name(id=name) if name in self.parts:
                return self._sum(node, [*self.parts[name], *self.computed.get(name, ())])
            case ast.Dict(keys=keys, values=values):
                words = []
                for key, value in zip(keys, values, strict=True):
                    word = _text(self._value(key)) if key else None
                    words.append(ast.keyword(arg=word, value=value))
                return self._mapping(words)
            case ast.Call(func=ast.Name(id="dict"), keywords=words):
                return self._mapping(words)
            case ast.Call(func=ast.Name(id="list" | "sorted" | "set"), args=[part]):
                return self._value(part)
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                last = self.functions[name].body[-1]
                if isinstance(last, ast.Return) and isinstance(last.value, ast.List):
                    return self._value(last.value)
            case ast.Subscript(value=part, slice=index):
                entries, entry = self._value(part), _text(self._value(index))
                if isinstance(entries, dict) and entry in entries:
                    return entries[entry]
                # `deps["numpy"]`, where deps is computed from a list of requirements.
                if entry and (item := self._listed_requirement(entry)):
                    return item
        files = dict.fromkeys(self._files(node, ()))
        return [self._item(node, "file", name) for name in files] or self._item(node, "computed")

    def _listed_requirement(self, name: str) -> _Item | None:
        """The one text in the program's lists that requests a package."""
        found = {
            item.value: item
            for parts in self.parts.values()
            for part in parts
            if isinstance(part, ast.List)
            for item in part.elts
            if isinstance(item, ast.Constant)
            and isinstance(item.value, str)
            and package_name(item.value) == package_name(name)
        }
        if len(found) != 1:
            return None
        text, node = found.popitem()
        return self._item(node, "text", text)

    def _sum(self, node: ast.AST, parts: Sequence[ast.AST]) -> _Value:
        """Of texts a text, of lists a list, of dictionaries a dictionary."""
        values = [self._value(part) for part in parts]
        texts = [_text(value) for value in values]
        if any(isinstance(value, dict) for value in values):
            return _merged(values)
        if not any(texts):
            return [item for value in values for item in _items(value)]
        if None in texts:
            return self._item(node, "computed")
        return self._item(node, "text", "".join(text or "" for text in texts))

    def _item(
        self, node: ast.AST, kind: Literal["text", "file", "computed"], text: str = ""
    ) -> _Item:
        source = ast.get_source_segment(self.text, node) or ast.unparse(node)
        line = getattr(node, "lineno", None)
        return _Item(kind=kind, line=line, written=" ".join(source.split()), text=text)

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
                for inner in (self.functions.get(part.id), *self.parts.get(part.id, ())):
                    if inner is not None:
                        yield from self._files(inner, (*including, part.id))


def _assignment(node: ast.AST) -> tuple[str, ast.expr | None, bool]:
    """The name that a statement changes, empty if none; the value, None if it is not read; and
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


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _text(value: _Value) -> str | None:
    return value.text if isinstance(value, _Item) and value.kind == "text" else None


def _items(value: _Value) -> list[_Item]:
    """The items of a list; of a text, it alone; of a dictionary, those of its entries."""
    if isinstance(value, dict):
        return [item for entry in value.values() for item in _items(entry)]
    return value if isinstance(value, list) else [value]


def _merged(values: Iterable[_Value]) -> dict[str, _Value]:
    """One dictionary of several; what is none has entries whose names nobody knows."""
    result: dict[str, _Value] = {}
    for value in values:
        if isinstance(value, Mapping):
            result |= value
        else:
            result["**"] = [*_items(result.get("**", [])), *_items(value)]
    return result
