"""pyproject.toml: the project's own tables (PEP 621, PEP 735), and those of uv, PDM, Hatch, Flit and
setuptools. Poetry's and pixi's have modules of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from packaging.utils import canonicalize_name

from provision.core.errors import InvalidSpec
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Kind, PipRequirement, Statement
from provision.project_files import pixi, poetry
from provision.project_files.rules import table
from provision.project_files.toml_file import (
    Keys,
    Selection,
    TomlFile,
    check_shape,
    parse_document,
    pythons_of,
    same_name,
    table_requirement,
)

# The tables of `tool` that say what is installed; others are settings of linters and the like.
TOOLS = ("uv", "poetry", "pdm", "hatch", "flit", "setuptools", "pixi", "rye")

SCRIPT_METADATA = re.compile(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", re.MULTILINE)


def statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a pyproject.toml states. Raises InvalidSpec if it is malformed."""
    document = parse_document(file, text)
    tools = document.get("tool")
    tools = tools if isinstance(tools, Mapping) else {}
    document = {**document, "tool": {name: tools[name] for name in TOOLS if name in tools}}
    check_shape(file, document, "pyproject")
    toml = TomlFile(file=file, text=text, document=document)
    reader = _PyProject(toml, selection)
    return sorted(reader.statements(), key=lambda statement: statement.line or 0)


def script_statements(file: str, text: str, selection: Selection) -> list[Statement]:
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
        stated = list(toml.stated(table("pyproject")))
        for statement in stated:
            yield from self._sourced(statement, "")
        for dotted, option in table("optional").items():
            yield from self._optional(option, dotted.split("."))
        yield from self._indexes()
        kind, reason = table("pyproject")["tool.uv.override-dependencies"]
        overrides = ("tool", "pdm", "resolution", "overrides")
        yield from toml.requirements(overrides, kind=kind, reason=reason)
        if toml.table("tool", "poetry"):
            yield from poetry.statements(toml, self.selection)
        elif not any(statement.kind == "include" for statement in stated):
            yield from self._dynamic()
        pixi_table = toml.table("tool", "pixi")
        if pixi_table:
            check_shape(toml.file, pixi_table, "pixi")
            yield from pixi.table_statements(toml, ("tool", "pixi"), self.selection)

    def _sourced(self, statement: Statement, chosen: str) -> Iterator[Statement]:
        """A statement; of a requirement that uv takes from somewhere else, where that is. chosen: the
        group or extra that it is in."""
        replaced = False
        requirement = statement.requirement
        for name, sources in self.sources.items():
            is_named = requirement and same_name(name, requirement.name)
            if requirement is None or not is_named or statement.kind != "pip":
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
        for member in self.toml.value("tool", "uv", "workspace", "members") or ():
            folder = member.replace("*", name)
            if folder.rpartition("/")[2] == name:
                return f"./{folder}"
        return f"./{name}"

    def _optional(self, option: str, keys: Keys) -> Iterator[Statement]:
        """Groups or extras: those that are taken, and what the others have."""
        toml, value = self.toml, self.toml.value(*keys) or {}
        lists = value if isinstance(value, Mapping) else {"dev": value}
        defaults = toml.value("tool", "uv", "default-groups") if option == "group" else ()
        for name in lists:
            path = keys if lists is not value else (*keys, name)
            has_files = isinstance(lists[name], Mapping) and "file" in lists[name]
            kind: Kind = "include" if has_files else "pip"
            members = list(self._members(lists, name, ()))
            is_default = defaults == "all" or name in (defaults or ())
            is_shell = name == "default" and "envs" in keys  # what `hatch shell` enters
            if self.selection.takes(option, name) or is_default or is_shell:
                for text in members:
                    yield from self._sourced(toml.state(kind, path, item=text), name)
            elif members:
                yield self.selection.offer(toml.state("ignored", path), option, name, members)

    def _members(
        self, lists: Mapping[str, Any], name: str, including: tuple[str, ...]
    ) -> Iterator[str]:
        """The requirements of a group or an extra, and of those that it includes."""
        by_name = {canonicalize_name(key): items for key, items in lists.items()}
        name = canonicalize_name(name)
        if name in including or name not in by_name:
            problem = "includes itself" if name in including else "is not there"
            raise InvalidSpec(
                f"{self.toml.file}: `{including[-1]}` includes `{name}`, which {problem}.",
                advice=f"The file has: {', '.join(sorted(by_name))}.",
            )
        for item in self._items(by_name[name]):
            if isinstance(item, Mapping):
                yield from self._members(lists, item["include-group"], (*including, name))
                continue
            requirement = parse_lines(item)[0].requirement if item else None
            if not requirement or canonicalize_name(requirement.name) != self.project_name:
                yield item
                continue
            for extra in requirement.extras:  # of the project itself
                optional = self.toml.table("project", "optional-dependencies")
                further = (*including, name) if lists is optional else (name,)
                yield from self._members(optional, extra, further)

    def _items(self, items: Any) -> Sequence[Any]:
        """The items of a group: a list, setuptools' files, or the tables of a Hatch environment."""
        if not isinstance(items, Mapping):
            return list(items)
        files = items.get("file") or ()
        features = ",".join(items.get("features") or ())
        return [
            *([files] if isinstance(files, str) else files),
            *(items.get("dependencies") or ()),
            *(items.get("extra-dependencies") or ()),
            *([f"{self.project_name}[{features}]"] if features else ()),
        ]

    def _dynamic(self) -> Iterator[Statement]:
        """Requirements that the build backend finds elsewhere."""
        toml = self.toml
        state = partial(toml.state, keys=("project", "dynamic"), item="dependencies")
        backend = toml.value("build-system", "build-backend") or "setuptools.build_meta"
        if "dependencies" not in (toml.value("project", "dynamic") or ()):
            return
        if backend.startswith("setuptools"):
            reason = "setup.py or setup.cfg states the dependencies"
            yield state("note", reason=reason, next_step="provision import setup.py")
            return
        yield state(
            "unknown",
            reason=f"{backend} computes the dependencies when the project is built",
            next_step=f"uv pip compile {toml.file} --output-file requirements.txt",
        )

    def _indexes(self) -> Iterator[Statement]:
        """uv's indexes and PDM's sources."""
        used = json.dumps(list(self.sources.values()))
        for keys in (("tool", "uv", "index"), ("tool", "pdm", "source")):
            for number, index in enumerate(self.toml.value(*keys) or ()):
                kind: Kind = "find-links" if index.get("type") == "find_links" else "index"
                packages, reason = tuple(index.get("include_packages") or ()), ""
                if index.get("explicit"):
                    if json.dumps(index.get("name")) in used:
                        continue  # it is stated with its packages
                    kind, reason = "ignored", "it is explicit, and no package names it"
                yield self.toml.state(
                    kind, keys, item=index["url"], index=number, reason=reason, packages=packages
                )
