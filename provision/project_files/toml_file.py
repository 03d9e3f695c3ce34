"""A TOML file: its tables, the lines of its keys, and requirements that are written as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.markers import InvalidMarker
from packaging.utils import canonicalize_name

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.platforms import PLATFORM
from provision.core.requirement_lines import parse_lines
from provision.core.schema import schema_error
from provision.core.statements import Kind, Statement, marker_environment, marker_holds
from provision.core.toml_text import parse_toml

Keys = Sequence[str]
# What dotted keys state, and perhaps the reason of their statements.
KeyKinds = Mapping[str, Sequence[Any]]
# The Pythons for which a build of PyTorch exists.
PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
MARKER_KEYS = ("marker", "markers", "env-markers")
REVISION_KEYS = ("rev", "ref", "tag", "branch")


@frozen
class TomlFile:
    """file: its name in statements."""

    file: str
    text: str
    document: Mapping[str, Any]

    def value(self, *keys: str) -> Any:
        """What stands under nested keys; None if one of them is missing."""
        value: Any = self.document
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def table(self, *keys: str) -> Mapping[str, Any]:
        """The table under nested keys; empty if there is none."""
        value = self.value(*keys)
        return value if isinstance(value, Mapping) else {}

    def state(
        self,
        kind: Kind,
        keys: Keys,
        value: str = "",
        *,
        item: str = "",
        text: str = "",
        index: int = 0,
        reason: str = "",
        next_step: str = "",
        packages: tuple[str, ...] = (),
    ) -> Statement:
        """The statement of a key.

        item: the part of the key's value that it is about, as written there. text: what is shown
        instead of the item or of the key's line. index: which of the tables with the same header.
        """
        line = self._line(keys, item, index)
        source = self.text.splitlines()[line - 1].strip() if line else ".".join(keys)
        value = value or item
        statement = Statement(
            file=self.file,
            line=line,
            text=text or item or source,
            kind=kind,
            value=value,
            reason=reason,
            next_step=next_step,
            packages=packages,
        )
        if kind not in ("pip", "constraint"):
            return statement
        parsed = next(iter(parse_lines(value)), statement.because("it is empty", kind="unknown"))
        return replace(
            parsed,
            file=self.file,
            line=line,
            text=statement.text,
            kind=kind if parsed.kind == "pip" else parsed.kind,
            reason=parsed.reason or reason,
            next_step=parsed.next_step or next_step,
            packages=packages,
        )

    def stated(self, kinds: KeyKinds, root: Keys = ()) -> Iterator[Statement]:
        """The statements of some keys: of each text in a list, of each key of a table."""
        for dotted, (kind, *reasons) in kinds.items():
            reason = "".join(reasons)
            keys = (*root, *dotted.split("."))
            value = self.value(*keys)
            if isinstance(value, str):
                yield self.state(kind, keys, value, reason=reason)
            elif isinstance(value, list):
                for number, item in enumerate(value):
                    yield self.state(kind, keys, item=_text(item), index=number, reason=reason)
            elif isinstance(value, Mapping):
                yield from (self.state(kind, (*keys, key), reason=reason) for key in value)
            elif value is not None:
                yield self.state(kind, keys, reason=reason)

    def requirements(
        self,
        keys: Keys,
        sources: Mapping[str, str] | None = None,
        *,
        kind: Kind = "pip",
        reason: str = "",
    ) -> Iterator[Statement]:
        """The statements of a table of packages, each with a version or a table of options.
        sources: the addresses of the indexes that options name; None if they have the address."""
        for name, value in self.table(*keys).items():
            options = value if isinstance(value, Mapping) else {"version": value}
            path, index = (*keys, name), options.get("index")
            yield self.state(kind, path, table_requirement(name, options), reason=reason)
            address = index if sources is None else sources.get(index or "")
            if address:
                yield self.state("index", path, address, packages=(name,))
            elif index:
                yield self.state(
                    "unknown", path, reason=f"there is no source `{index}` in this file"
                )

    def locked(
        self,
        keys: Keys,
        index: int,
        name: str,
        version: str,
        options: Mapping[str, Any],
        address: str,
        item: str = "",
    ) -> Iterator[Statement]:
        """The statements of a locked package. address: of its index or file, which says the CUDA if
        it is PyTorch's."""
        text = f"{name} {version}".strip()
        value = table_requirement(name, {"version": f"=={version}" if version else "*", **options})
        yield self.state("pip", keys, value, item=item, text=text, index=index)
        build = re.match(r".*/whl/(?:cu\d+|cpu)(?=/|$)", address)
        if build:
            yield self.state(
                "index", keys, build[0], item=item, text=build[0], index=index, packages=(name,)
            )

    def _line(self, keys: Keys, item: str, index: int) -> int | None:
        """The line of a key, or of an item of its value. A dotted key may be written as a header, a
        key, or both."""
        position, rest = 0, list(keys)
        for depth in range(len(keys), 0, -1):
            dotted = r"\s*\.\s*".join(_key(key) for key in keys[:depth])
            headers: list[re.Match[str]] = []
            for end in (r"\]", r"\."):  # the table itself, else the first one in it
                pattern = rf"^[ \t]*(?=\[+\s*{dotted}\s*{end})"
                headers = headers or list(re.finditer(pattern, self.text, re.MULTILINE))
            if headers:
                header = headers[min(index, len(headers) - 1)]
                position, rest = header.end(), list(keys[depth:])
                break
        for key in rest:
            match = re.compile(rf"(?<![\w-]){_key(key)}\s*[.=:]").search(self.text, position)
            if match is None:
                return None
            position = match.start()
        for written in (f'"{item}"', f"'{item}'", item):
            if item and written in self.text[position:]:
                position = self.text.index(written, position)
                break
        return self.text.count("\n", 0, position) + 1


@dataclass(frozen=True)
class Selection:
    """The groups and extras that are taken besides what a file requests by itself.

    command: how a user takes another one.
    """

    command: str = "provision init"
    groups: frozenset[str] = frozenset()
    extras: frozenset[str] = frozenset()
    offered: dict[str, set[str]] = field(default_factory=lambda: {"group": set(), "extra": set()})

    def takes(self, option: str, name: str) -> bool:
        """Is a group or an extra taken? It is offered from now on. option: group or extra."""
        self.offered[option].add(name)
        names = self.groups if option == "group" else self.extras
        return any(same_name(name, chosen) for chosen in names)

    def offer(
        self, statement: Statement, option: str, name: str, members: Iterable[str]
    ) -> Statement:
        """The statement about a group or an extra that is not taken. members: its requirements."""
        return replace(
            statement,
            text=f"{name}: {', '.join(members)}",
            reason=f"the {option} `{name}` is taken on request",
            next_step=f"{self.command} --{option} {name}",
        )

    def check(self) -> None:
        """Raise InvalidSpec for a chosen group or extra that no file offered."""
        for option, names in (("group", self.groups), ("extra", self.extras)):
            offered = sorted(self.offered[option])
            for name in sorted(names):
                if not any(same_name(name, other) for other in offered):
                    raise InvalidSpec(
                        f"There is no {option} `{name}`.",
                        advice=f"The files have: {', '.join(offered) or f'no {option}'}.",
                    )


def parse_document(file: str, text: str) -> Mapping[str, Any]:
    """The document in a text. Raises InvalidSpec."""
    try:
        return parse_toml(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise InvalidSpec(f"{file} is not TOML: {error}.", advice="Correct the file.") from error


def read_toml(file: str, text: str, schema: str) -> TomlFile:
    """A file whose tables have the types that their tool documents. Raises InvalidSpec."""
    document = parse_document(file, text)
    check_shape(file, document, schema)
    return TomlFile(file=file, text=text, document=document)


def check_shape(file: str, document: Mapping[str, Any], schema: str) -> None:
    """Raise InvalidSpec if tables do not have the types that their tool documents."""
    problem = schema_error(document, schema)
    if problem:
        raise InvalidSpec(f"{file}: {problem}.", advice="Correct the file.")


def table_requirement(package: str, options: Mapping[str, Any]) -> str:
    """A requirement that uv, pixi, PDM or Pipenv writes as a table, as PEP 508 or `-e PATH`."""
    extras = ",".join(options.get("extras") or ())
    suffix = f"[{extras}]" if extras else ""
    path = str(options.get("path") or options.get("file") or "")
    version = str(options.get("version") or "*").strip()
    is_path = path and "://" not in path and not options.get("url")
    if is_path and not path.startswith((".", "/", "~")):
        path = f"./{path}"
    if options.get("git"):
        text = f"{package}{suffix} @ {git_address(options)}"
    elif is_path and options.get("editable"):
        text = f"-e {path}{suffix}"
    elif path or options.get("url"):
        text = f"{package}{suffix} @ {options.get('url') or path}"
    elif version in ("", "*"):
        text = f"{package}{suffix}"
    else:
        operator = "" if version[0] in "<>=!~" else "=="
        text = f"{package}{suffix}{operator}{version}"
    # Pipenv has the variables of markers as keys.
    variables = marker_environment(PYTHONS[0], PLATFORM)
    markers = [f"({options[key]})" for key in MARKER_KEYS if options.get(key)]
    markers += [f"{key} {options[key]}" for key in variables if options.get(key)]
    return f"{text} ; {' and '.join(markers)}" if markers else text


def git_address(options: Mapping[str, Any]) -> str:
    """The address of a `git` table, with its revision and folder."""
    address = str(options["git"])
    scp = re.fullmatch(r"(?:(\w+)@)?([\w.-]+):(?!//)(.+)", address)
    if scp:
        address = f"ssh://{scp[1] or 'git'}@{scp[2]}/{scp[3]}"
    revisions = [f"@{options[key]}" for key in REVISION_KEYS if options.get(key)]
    folder = options.get("subdirectory")
    fragment = f"#subdirectory={folder}" if folder else ""
    return f"git+{address.removeprefix('git+')}{''.join(revisions[:1])}{fragment}"


def pythons_of(marker: str) -> tuple[str, ...]:
    """The Pythons for which a marker holds on Linux. All of them for what is no marker: it is refused
    where it is used."""
    try:
        return tuple(python for python in PYTHONS if marker_holds(marker, python))
    except InvalidMarker:
        return PYTHONS


def same_name(name: str, other: str) -> bool:
    """Whether two names of packages, groups or extras are the same."""
    return canonicalize_name(name) == canonicalize_name(other)


def _text(item: Any) -> str:
    """An item of a list; of a table, the key that says what it is about."""
    keys = ("url", "path", "channel", "platform", "requires_python")
    table = item if isinstance(item, Mapping) else {"url": item}
    return next((str(table[key]) for key in keys if key in table), "")


def _key(key: str) -> str:
    return rf"[\"']?{re.escape(key)}[\"']?"
