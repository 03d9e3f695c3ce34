"""pyproject.toml: the project's own tables (PEP 621, PEP 735), and those of uv, PDM, Hatch, Flit and
setuptools. Poetry's and pixi's have modules of their own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from packaging.utils import canonicalize_name

from provision.catalog import cuda_of_tag
from provision.core.errors import InvalidSpec
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Kind, PipRequirement, Statement
from provision.project_files import pixi, poetry
from provision.project_files.dockerfile import INDEX_VARIABLE
from provision.project_files.rules import table
from provision.project_files.toml_file import (
    Keys,
    Selection,
    TomlFile,
    check_shape,
    parse_document,
    pythons_of,
    table_requirement,
)

# The tables of `tool` that say what is installed; others are settings of linters and the like.
TOOLS = ("uv", "poetry", "pdm", "hatch", "flit", "setuptools", "pixi", "rye")

SCRIPT_METADATA = re.compile(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", re.MULTILINE)


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a pyproject.toml states. Raises InvalidSpec if it is malformed."""
    document = parse_document(file, text)
    tools = document.get("tool")
    tools = tools if isinstance(tools, Mapping) else {}
    document = {
        **{key: value for key, value in document.items() if key != "tool"},
        "tool": {name: tools[name] for name in TOOLS if name in tools},
    }
    check_shape(file, document, "pyproject")
    toml = TomlFile(file=file, text=text, document=document)
    reader = _PyProject(toml, selection or Selection())
    return sorted(reader.statements(), key=lambda statement: statement.line or 0)


def script_statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a script states about itself in its block of metadata (PEP 723). Raises InvalidSpec if
    that is malformed."""
    block = SCRIPT_METADATA.search(text)
    if block is None:
        return []
    before = "\n" * text.count("\n", 0, block.start())
    content = re.sub(r"^# ?", "", block[1], flags=re.MULTILINE)
    return statements(file, f"{before}[project]\n{content}", selection)


class _PyProject:
    """One pyproject.toml. The tables share uv's sources, the project's name and the selection."""

    def __init__(self, toml: TomlFile, selection: Selection) -> None:
        self.toml = toml
        self.selection = selection
        self.sources = toml.table("tool", "uv", "sources")
        self.project_name = canonicalize_name(str(toml.value("project", "name") or ""))

    def statements(self) -> Iterator[Statement]:
        toml = self.toml
        files = 0
        for statement in toml.stated(table("pyproject")):
            files += statement.kind == "include"
            yield from self._sourced(statement, "")
        for dotted, option in table("optional").items():
            lists = toml.value(*dotted.split(".")) or {}
            lists = {"dev": lists} if isinstance(lists, list) else lists
            yield from self._optional(option, dotted.split("."), lists)
        yield from self._uv()
        yield from self._pdm()
        yield from self._hatch()
        if toml.table("tool", "poetry"):
            yield from poetry.statements(toml, self.selection)
        elif not files and "dependencies" in (toml.value("project", "dynamic") or ()):
            yield self._dynamic()
        pixi_table = toml.table("tool", "pixi")
        if pixi_table:
            check_shape(toml.file, pixi_table, "pixi")
            yield from pixi.table_statements(toml, ("tool", "pixi"), self.selection)

    def _sourced(self, statement: Statement, chosen: str) -> Iterator[Statement]:
        """A statement; of a requirement that uv takes from somewhere else, where that is. chosen: the
        group or extra that it is in."""
        replaced = False
        requirement = statement.requirement if statement.kind == "pip" else None
        for name, sources in self.sources.items() if requirement else ():
            assert requirement is not None
            if canonicalize_name(name) != canonicalize_name(requirement.name):
                continue
            for source in [sources] if isinstance(sources, Mapping) else sources:
                if (source.get("extra") or source.get("group")) in (None, chosen):
                    stated = self._source(name, source, requirement)
                    replaced |= not source.get("index") and stated.kind != "ignored"
                    yield stated
        if not replaced:
            yield statement

    def _source(
        self, name: str, source: Mapping[str, Any], requirement: PipRequirement
    ) -> Statement:
        """What one of a package's sources states."""
        pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
        state = partial(
            self.toml.state, keys=("tool", "uv", "sources", name), text=f"{name} = {{ {pairs} }}"
        )
        marker, index = source.get("marker", ""), source.get("index")
        if not pythons_of(marker):
            return state("ignored", reason=f"`{marker}` does not hold on Linux")
        if index:
            for entry in self.toml.value("tool", "uv", "index") or ():
                if entry.get("name") == index:
                    return state("index", value=entry["url"], packages=(name,))
            return state("unknown", reason=f"there is no index `{index}` in this file")
        if source.get("workspace"):
            source = {"path": self._member_folder(name), "editable": True}
        markers = [f"({text})" for text in (requirement.marker, marker) if text]
        options = {**source, "extras": requirement.extras, "marker": " and ".join(markers)}
        return state("pip", value=table_requirement(requirement.name, options))

    def _member_folder(self, name: str) -> str:
        """The folder of a workspace's member, by the pattern that has room for its name."""
        members = self.toml.value("tool", "uv", "workspace", "members") or ()
        for member in members:
            if member.rpartition("/")[2] == name:
                return f"./{member}"
        for member in members:
            if member.endswith("*"):
                return f"./{member.rstrip('*')}{name}"
        return f"./{name}"

    def _optional(self, option: str, keys: Keys, lists: Mapping[str, Any]) -> Iterator[Statement]:
        """Groups or extras: those that are taken, and what the others have."""
        toml = self.toml
        defaults = toml.value("tool", "uv", "default-groups") if option == "group" else ()
        for name, items in lists.items():
            path = (*keys, name) if name in toml.table(*keys) else keys
            is_default = defaults == "all" or name in (defaults or ())
            if isinstance(items, Mapping):  # files, of setuptools
                kind: Kind = "include"
                members = _texts(items.get("file"))
            else:
                kind, members = "pip", list(self._members(lists, name, ()))
            if self.selection.takes(option, name) or is_default:
                for text in members:
                    yield from self._sourced(toml.state(kind, path, item=text), name)
            elif members:
                yield self.selection.offer(toml.state("ignored", path), option, name, members)

    def _members(
        self, lists: Mapping[str, Sequence[Any]], name: str, including: tuple[str, ...]
    ) -> Iterator[str]:
        """The requirements of a group or an extra, and of those that it includes."""
        by_name = {canonicalize_name(key): items for key, items in lists.items()}
        name = canonicalize_name(name)
        if name in including:
            raise InvalidSpec(
                f"{self.toml.file}: the group `{name}` includes itself.",
                advice="Remove one of the inclusions.",
            )
        if name not in by_name:
            raise InvalidSpec(
                f"{self.toml.file}: `{including[-1]}` includes `{name}`, which is not there.",
                advice=f"The file has: {', '.join(sorted(by_name))}.",
            )
        for item in by_name[name]:
            if isinstance(item, Mapping):
                yield from self._members(lists, item["include-group"], (*including, name))
                continue
            requirement = parse_lines(item)[0].requirement if item else None
            if not requirement or canonicalize_name(requirement.name) != self.project_name:
                yield item
                continue
            for extra in requirement.extras:  # of the project itself
                optional = self.toml.table("project", "optional-dependencies")
                further = (*including, name) if lists is optional else ()
                yield from self._members(optional, extra, further)

    def _dynamic(self) -> Statement:
        """Requirements that the build backend finds elsewhere."""
        toml = self.toml
        state = partial(toml.state, keys=("project", "dynamic"), item="dependencies")
        backend = toml.value("build-system", "build-backend") or "setuptools.build_meta"
        if backend.startswith("setuptools"):
            reason = "setup.py or setup.cfg states the dependencies"
            return state("note", reason=reason, next_step="provision import setup.py")
        return state(
            "unknown",
            reason=f"{backend} computes the dependencies when the project is built",
            next_step=f"uv pip compile {toml.file} --output-file requirements.txt",
        )

    def _uv(self) -> Iterator[Statement]:
        toml, uv = self.toml, ("tool", "uv")
        values = [
            [value] if isinstance(value, Mapping) else value for value in self.sources.values()
        ]
        used = {source.get("index") for sources in values for source in sources}
        for number, index in enumerate(toml.value(*uv, "index") or ()):
            keys = (*uv, "index")
            if not index.get("explicit"):
                yield toml.state("index", keys, item=index["url"], index=number)
            elif index.get("name") not in used:
                reason = "it is explicit, and no package names it"
                yield toml.state("ignored", keys, item=index["url"], index=number, reason=reason)
        backend = toml.value(*uv, "pip", "torch-backend")
        if backend:
            value = cuda_of_tag(backend)
            kind: Kind = "cuda" if value != backend or backend == "cpu" else "ignored"
            reason = "" if kind == "cuda" else "it names no CUDA version"
            yield toml.state(kind, (*uv, "pip", "torch-backend"), value, reason=reason)
        self._check_conflicts()

    def _check_conflicts(self) -> None:
        """Raise InvalidSpec if groups or extras are chosen that exclude each other."""
        for conflict in self.toml.value("tool", "uv", "conflicts") or ():
            chosen = [
                f"--{option} {entry[option]}"
                for entry in conflict
                for option in ("group", "extra")
                if option in entry and self.selection.takes(option, entry[option])
            ]
            if len(chosen) > 1:
                raise InvalidSpec(
                    f"{self.toml.file}: {' and '.join(chosen)} exclude each other "
                    "(tool.uv.conflicts).",
                    advice="Choose one of them.",
                )

    def _pdm(self) -> Iterator[Statement]:
        toml, keys = self.toml, ("tool", "pdm", "source")
        for number, source in enumerate(toml.value(*keys) or ()):
            packages = tuple(source.get("include_packages") or ())
            kind: Kind = "find-links" if source.get("type") == "find_links" else "index"
            yield toml.state(kind, keys, item=source["url"], index=number, packages=packages)
        overrides = ("tool", "pdm", "resolution", "overrides")
        kind, reason = table("pyproject")["tool.uv.override-dependencies"]
        yield from toml.requirements(overrides, kind=kind, reason=reason)

    def _hatch(self) -> Iterator[Statement]:
        """Hatch's environments: `default` is what `hatch shell` enters, others are groups."""
        toml, optional = self.toml, self.toml.table("project", "optional-dependencies")
        for name, environment in toml.table("tool", "hatch", "envs").items():
            keys = ("tool", "hatch", "envs", name)
            requirements = [
                (key, text)
                for key in ("dependencies", "extra-dependencies")
                for text in environment.get(key) or ()
            ]
            for extra in environment.get("features") or ():
                members = self._members(optional, extra, (name,))
                requirements += [("features", text) for text in members]
            if name == "default" or self.selection.takes("group", name):
                for key, text in requirements:
                    yield from self._sourced(toml.state("pip", (*keys, key), item=text), "")
                yield from self._variables((*keys, "env-vars"))
                if environment.get("python"):
                    yield toml.state("python", (*keys, "python"), f"=={environment['python']}.*")
            elif requirements:
                texts = [text for _, text in requirements]
                yield self.selection.offer(toml.state("ignored", keys), "group", name, texts)

    def _variables(self, keys: Keys) -> Iterator[Statement]:
        """Variables of an environment: those of pip and uv that name an index, and others."""
        for name, value in self.toml.table(*keys).items():
            statement = self.toml.state("unknown", (*keys, name))
            if option := INDEX_VARIABLE.fullmatch(name):
                text = f"--{option[1].lower().replace('_', '-')} {value}"
                yield from parse_lines(text, self.toml.file, statement.line)
            else:
                words = shlex.quote(f"{name}={value}")
                step = f"provision run NAME -- env {words} python train.py"
                yield statement.because("spec.yml holds no variables", step)


def _texts(value: Any) -> list[str]:
    """The texts of a key that has one or several."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]
