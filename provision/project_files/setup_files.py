"""setup.cfg and setup.py. A setup.py is read, and never run: lists, names, sums of them and the files
that it opens. What only running it would tell is named.
"""

from __future__ import annotations

import ast
import configparser
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.core.credentials import public_request
from provision.core.errors import InvalidSpec
from provision.core.requirement_lines import parse_lines
from provision.project_files.requirements import statements_of
from provision.project_files.statements import Kind, Statement
from provision.project_files.toml_file import Selection

_FILE = re.compile(r"[\w./-]+\.(?:txt|in)")
_BUILD_TOOLS = "it is needed to build or test the project, not to use it"


def cfg_statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a setup.cfg states. Raises InvalidSpec if it is malformed."""
    selection = selection or Selection()
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text, file)
    except configparser.Error as error:
        raise InvalidSpec(
            f"{file} is no setup.cfg: {error.message.splitlines()[0]}", advice="Correct the file."
        ) from error
    cfg = _Cfg(file, text)
    result: list[Statement] = []
    if parser.has_option("metadata", "name"):
        name = parser.get("metadata", "name")
        result.append(cfg.state("name", name, name))
    for section, option in (("options", "python_requires"), ("options", "python-requires")):
        if parser.has_option(section, option):
            value = parser.get(section, option)
            result.append(cfg.state("python", value, value))
    options = parser["options"] if parser.has_section("options") else {}
    for key, value in options.items():
        key = key.replace("-", "_")
        if key == "install_requires":
            result += cfg.requirements(value)
        elif key in ("setup_requires", "tests_require"):
            for item in _listed(value):
                result.append(cfg.state("ignored", item, item, reason=_BUILD_TOOLS))
        elif key == "dependency_links":
            result += [cfg.state("find-links", item, item) for item in _listed(value)]
    extras = "options.extras_require"
    for name, value in parser[extras].items() if parser.has_section(extras) else ():
        if selection.takes("extra", name):
            result += cfg.requirements(value)
        else:
            result.append(
                cfg.state(
                    "ignored",
                    name,
                    text=f"{name}: {', '.join(_listed(value))}",
                    reason=f"the extra `{name}` is taken on request",
                    next_step=f"{selection.command} --extra {name}",
                )
            )
    return result


@dataclass(frozen=True)
class _Cfg:
    file: str
    text: str

    def state(
        self,
        kind: Kind,
        item: str,
        value: str = "",
        *,
        text: str = "",
        reason: str = "",
        next_step: str = "",
    ) -> Statement:
        position = self.text.find(item)
        return Statement(
            file=self.file,
            line=self.text.count("\n", 0, position) + 1 if position >= 0 else None,
            text=public_request(text or item),
            kind=kind,
            value=value,
            reason=reason,
            next_step=next_step,
        )

    def requirements(self, value: str) -> Iterator[Statement]:
        """A list of requirements, or the files that have it."""
        if value.strip().startswith("file:"):
            for name in value.strip().removeprefix("file:").split(","):
                yield self.state("include", name.strip(), name.strip())
            return
        for item in _listed(value):
            line = self.state("pip", item).line
            yield from statements_of(parse_lines(item), file=self.file, line=line)


def _listed(value: str) -> list[str]:
    """A list of setup.cfg: an item a line, or items separated by semicolons."""
    value = value.strip()
    separator = "\n" if "\n" in value else ";"
    if separator == ";" and re.search(r";\s*\w+\s*(?:[<>=!~]=?|in\b|not\b)\s*['\"]", value):
        separator = "\n"  # it belongs to a marker
    lines = (re.sub(r"(^|\s)#.*", "", item).strip() for item in value.split(separator))
    return [item for item in lines if item]


def setup_py_statements(
    file: str, text: str, selection: Selection | None = None
) -> list[Statement]:
    """What a setup.py states. Raises InvalidSpec if it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the program's style
            tree = ast.parse(text)
        return list(_SetupPy(file, text, tree, selection or Selection()).statements())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InvalidSpec(
            f"{file} cannot be read as a program of Python 3: {error}.",
            advice="Write its requirements into a requirements.txt.",
        ) from error


@dataclass
class _Name:
    """What is assigned to a name, and what is added to it."""

    value: ast.expr | None = None
    added: list[ast.expr] = field(default_factory=list)
    conditional: list[ast.stmt] = field(default_factory=list)


class _Unreadable(Exception):
    """An expression that only running the program would evaluate."""


def _names_in(node: ast.expr | None) -> set[str]:
    parts = ast.walk(node) if node is not None else ()
    return {part.id for part in parts if isinstance(part, ast.Name)}


class _SetupPy:
    def __init__(self, file: str, text: str, tree: ast.Module, selection: Selection) -> None:
        self.file = file
        self.text = text
        self.tree = tree
        self.selection = selection
        self.names: dict[str, _Name] = {}
        self.functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        self._collect(tree.body, is_conditional=False)

    def _collect(self, body: Sequence[ast.stmt], *, is_conditional: bool) -> None:
        """Note the assignments of a block, and of the blocks in it."""
        for statement in body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                )
                for target in targets:
                    base = target.value if isinstance(target, ast.Subscript) else target
                    if not isinstance(base, ast.Name):
                        continue
                    name = self.names.setdefault(base.id, _Name())
                    refers = base.id in _names_in(statement.value)
                    if is_conditional or refers or base is not target:
                        name.conditional.append(statement)
                    else:
                        self.names[base.id] = _Name(value=statement.value)
            elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                self._add(statement.target.id, statement.value, statement, is_conditional)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                call = statement.value
                if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
                    if call.func.attr == "append" and call.args:
                        item = ast.List(elts=call.args[:1], ctx=ast.Load())
                        self._add(call.func.value.id, item, statement, is_conditional)
                    elif call.func.attr in ("extend", "update") and call.args:
                        self._add(call.func.value.id, call.args[0], statement, is_conditional)
            for opened in statement.items if isinstance(statement, ast.With) else ():
                if isinstance(opened.optional_vars, ast.Name):
                    self.names[opened.optional_vars.id] = _Name(value=opened.context_expr)
            is_main = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
            always = isinstance(statement, (ast.FunctionDef, ast.With)) or is_main
            for blocks in ("body", "orelse", "handlers", "finalbody"):
                block = getattr(statement, blocks, [])
                inner = [
                    node
                    for entry in block
                    for node in (entry.body if isinstance(entry, ast.ExceptHandler) else [entry])
                ]
                self._collect(inner, is_conditional=is_conditional or not always)

    def _add(self, name: str, value: ast.expr, statement: ast.stmt, is_conditional: bool) -> None:
        entry = self.names.setdefault(name, _Name())
        if is_conditional:
            entry.conditional.append(statement)
        else:
            entry.added.append(value)

    def statements(self) -> Iterator[Statement]:
        calls = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] == "setup"
            and (node.keywords or node.args)
        ]
        if not calls:
            return
        for key, value in self._keywords(calls[0]):
            if key in ("name", "python_requires"):
                kind: Kind = "name" if key == "name" else "python"
                try:
                    yield self._state(kind, value, self._text(value))
                except _Unreadable:
                    yield self._unreadable(key, value)
            elif key == "install_requires":
                yield from self._requirements(key, value)
            elif key == "extras_require":
                yield from self._extras(value)
            elif key == "**":
                yield self._unreadable("arguments", value)
            elif key in ("setup_requires", "tests_require"):
                for _, node in self._items(value):
                    if node is not None:
                        yield self._state("ignored", node, reason=_BUILD_TOOLS)
            elif key == "dependency_links":
                for address, node in self._items(value):
                    if address:
                        yield self._state("find-links", node or value, address)

    def _keywords(self, call: ast.Call) -> Iterator[tuple[str, Any]]:
        """The arguments by name, those of `**NAME` too; `**` for what is not readable."""
        for keyword in call.keywords:
            if keyword.arg:
                yield keyword.arg, keyword.value
                continue
            try:
                yield from self._pairs(keyword.value)
            except _Unreadable:
                yield "**", keyword.value
            name = self.names.get(ast.unparse(keyword.value), _Name())
            yield from (("**", node) for node in name.conditional)

    def _pairs(self, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
        """The entries of a dictionary."""
        if isinstance(node, ast.Name) and node.id in self.names:
            name = self.names[node.id]
            for part in (name.value, *name.added):
                if part is not None:
                    yield from self._pairs(part)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from self._pairs(value)
                else:
                    yield self._text(key), value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
            yield from ((word.arg, word.value) for word in node.keywords if word.arg)
        else:
            raise _Unreadable

    def _requirements(self, key: str, value: ast.expr) -> Iterator[Statement]:
        for requirement, node in self._items(value):
            if requirement:
                parsed = parse_lines(requirement)
                yield from statements_of(parsed, file=self.file, line=node.lineno if node else 0)
            elif node is not None:
                yield from self._files(key, node)

    def _extras(self, value: ast.expr) -> Iterator[Statement]:
        try:
            pairs = list(self._pairs(value))
        except _Unreadable:
            yield self._unreadable("extras_require", value)
            return
        for extra, requirements in pairs:
            if self.selection.takes("extra", extra):
                yield from self._requirements("extras_require", requirements)
                continue
            members = [text for text, _ in self._items(requirements) if text]
            yield self._state(
                "ignored",
                requirements,
                text=f"{extra}: {', '.join(members) or ast.unparse(requirements)}",
                reason=f"the extra `{extra}` is taken on request",
                next_step=f"{self.selection.command} --extra {extra}",
            )
        for statement in self.names[value.id].conditional if isinstance(value, ast.Name) else ():
            yield self._unreadable("extras_require", statement)

    def _items(self, node: ast.expr) -> Iterator[tuple[str, ast.expr | ast.stmt | None]]:
        """The texts of a list, each with its expression; an empty text where it is not readable."""
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            for item in node.elts:
                if isinstance(item, ast.Starred):
                    yield from self._items(item.value)
                    continue
                try:
                    yield self._text(item), item
                except _Unreadable:
                    yield "", item
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self._items(node.left)
            yield from self._items(node.right)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("list", "sorted", "set"):
            yield from self._items(node.args[0]) if node.args else ()
        elif (returned := self._returned_list(node)) is not None:
            yield from self._items(returned)
        elif isinstance(node, ast.Subscript):
            entries: dict[str, ast.expr] = {}
            try:
                entries = dict(self._pairs(node.value))
                yield from self._items(entries[self._text(node.slice)])
            except (_Unreadable, KeyError):
                yield "", node
        elif isinstance(node, ast.Name) and self._is_list(node.id):
            name = self.names[node.id]
            for part in (name.value, *name.added):
                if part is not None:
                    yield from self._items(part)
            yield from (("", statement) for statement in name.conditional)
        else:
            try:
                for line in self._text(node).splitlines():
                    if line.strip():
                        yield line.strip(), node
            except _Unreadable:
                yield "", node

    def _returned_list(self, node: ast.expr) -> ast.expr | None:
        """The list that a function of this file returns, if it is written down there."""
        name = (
            node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        )
        last = self.functions[name].body[-1] if name in self.functions else None
        is_list = isinstance(last, ast.Return) and isinstance(last.value, ast.List)
        return last.value if is_list and isinstance(last, ast.Return) else None

    def _is_list(self, name: str) -> bool:
        """Can a name's value be read, at least in parts?"""
        return name in self.names and self.names[name].value is not None

    def _text(self, node: ast.expr) -> str:
        """A text that the program writes down. Raises _Unreadable."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name) and self._is_list(node.id):
            name = self.names[node.id]
            if name.value is not None and not name.added and not name.conditional:
                return self._text(name.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._text(node.left) + self._text(node.right)
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part) for part in node.values)
        if isinstance(node, ast.FormattedValue) and node.format_spec is None:
            return self._text(node.value)
        raise _Unreadable

    def _files(self, key: str, node: ast.expr | ast.stmt) -> Iterator[Statement]:
        """The files of requirements that an expression opens; else that it is not readable."""
        names = dict.fromkeys(self._file_names(node, ()))
        for name in names:
            reason = f"{self.file} reads it for {key}"
            yield self._state("include", node, name, reason=reason)
        if not names:
            yield self._unreadable(key, node)

    def _file_names(self, node: ast.AST, including: tuple[str, ...]) -> Iterator[str]:
        """Names of files in an expression, in the functions that it calls, and in the values of its
        names."""
        folder: list[str] = []
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                if _FILE.fullmatch(part.value):
                    yield "/".join([*folder, part.value])
                elif re.fullmatch(r"[\w-]*requirements[\w-]*", part.value):
                    folder.append(part.value)
            elif isinstance(part, ast.Name) and part.id not in including:
                further = [self.functions.get(part.id)]
                if part.id in self.names:
                    further.append(self.names[part.id].value)  # type: ignore[arg-type]
                for inner in further:
                    if inner is not None:
                        yield from self._file_names(inner, (*including, part.id))

    def _unreadable(self, key: str, node: ast.expr | ast.stmt) -> Statement:
        return self._state(
            "unknown",
            node,
            reason=f"{key} is computed when {self.file} runs, and it is not run",
            next_step=f"uv pip compile {self.file} --output-file requirements.txt",
        )

    def _state(
        self,
        kind: Kind,
        node: ast.expr | ast.stmt,
        value: str = "",
        *,
        text: str = "",
        reason: str = "",
        next_step: str = "",
    ) -> Statement:
        source = ast.get_source_segment(self.text, node) or ast.unparse(node)
        return Statement(
            file=self.file,
            line=getattr(node, "lineno", None),
            text=public_request(text or " ".join(source.split())),
            kind=kind,
            value=value,
            reason=reason,
            next_step=next_step,
        )
