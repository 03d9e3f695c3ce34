"""pyproject.toml: the project's own tables (PEP 621, PEP 735), and those of uv, PDM, Hatch, Flit and
setuptools. Poetry's and pixi's have modules of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from provision.core.errors import InvalidSpec
from provision.project_files import pixi, poetry
from provision.project_files.statements import Kind, Statement
from provision.project_files.toml_file import (
    Keys,
    Selection,
    TomlFile,
    check_shape,
    parse_toml,
    pythons_of,
    table_requirement,
)

# The tables of `tool` that say what is installed; others are settings of linters and the like.
TOOLS = ("uv", "poetry", "pdm", "hatch", "flit", "setuptools", "pixi", "rye")
_BUILDS = "packages that need torch are built against the locked torch"
_NO_SETTING = "spec.yml has no such setting; name the release that you want"
_PLATFORM = "the platform is chosen in spec.yml"
_OVERRIDES = "spec.yml has no overrides; it is taken as a constraint"
# What a key with a text or a list of texts states, and the reason of the statement.
_KEYS: dict[str, tuple[Kind, str]] = {
    "project.name": ("name", ""),
    "project.requires-python": ("python", ""),
    "project.dependencies": ("pip", ""),
    "tool.flit.metadata.requires": ("pip", ""),
    "tool.flit.metadata.requires-python": ("python", ""),
    "tool.uv.index-url": ("index", ""),
    "tool.uv.extra-index-url": ("index", ""),
    "tool.uv.find-links": ("find-links", ""),
    "tool.uv.pip.index-url": ("index", ""),
    "tool.uv.pip.extra-index-url": ("index", ""),
    "tool.uv.pip.find-links": ("find-links", ""),
    "tool.uv.constraint-dependencies": ("constraint", ""),
    "tool.uv.override-dependencies": ("constraint", _OVERRIDES),
    "tool.uv.environments": ("ignored", _PLATFORM),
    "tool.uv.required-environments": ("ignored", _PLATFORM),
    "tool.uv.no-build-isolation": ("ignored", _BUILDS),
    "tool.uv.no-build-isolation-package": ("ignored", _BUILDS),
    "tool.uv.extra-build-dependencies": ("ignored", _BUILDS),
    "tool.uv.build-constraint-dependencies": ("ignored", "it constrains builds of packages"),
    "tool.uv.prerelease": ("ignored", _NO_SETTING),
    "tool.uv.resolution": ("ignored", _NO_SETTING),
    "tool.uv.exclude-newer": ("ignored", _NO_SETTING),
    "tool.uv.dependency-metadata": ("ignored", "the packages' own metadata is read"),
    "build-system.requires": ("ignored", "it builds the project itself, not the environment"),
}
# Tables of lists that are taken by option, and lists that are the group `dev`.
_OPTIONAL = {
    "project.optional-dependencies": "extra",
    "dependency-groups": "group",
    "tool.flit.metadata.requires-extra": "extra",
    "tool.pdm.dev-dependencies": "group",
    "tool.uv.dev-dependencies": "group",
    "tool.rye.dev-dependencies": "group",
}


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a pyproject.toml states. Raises InvalidSpec if it is malformed."""
    document = parse_toml(file, text)
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


class _PyProject:
    """One pyproject.toml. The tables share uv's sources, the project's name and the selection."""

    def __init__(self, toml: TomlFile, selection: Selection) -> None:
        self.toml = toml
        self.selection = selection
        self.sources = toml.table("tool", "uv", "sources")
        self.project_name = canonicalize_name(str(toml.value("project", "name") or ""))

    def statements(self) -> Iterator[Statement]:
        toml = self.toml
        for dotted, (kind, reason) in _KEYS.items():
            keys = dotted.split(".")
            value = toml.value(*keys)
            if kind == "ignored" and value is not None and not _texts(value):
                yield toml.state(kind, keys, reason=reason)  # a flag or a table
            for text in _texts(value):
                if kind == "pip":
                    yield from self._requirement(keys, text, "")
                else:
                    yield toml.state(kind, keys, item=text, reason=reason)
        yield from self._dynamic()
        for dotted, option in _OPTIONAL.items():
            lists = toml.value(*dotted.split(".")) or {}
            lists = {"dev": lists} if isinstance(lists, list) else lists
            yield from self._optional(option, dotted.split("."), lists)
        yield from self._uv()
        yield from self._pdm()
        yield from self._hatch()
        if toml.table("tool", "poetry"):
            yield from poetry.statements(toml, self.selection)
        pixi_table = toml.table("tool", "pixi")
        if pixi_table:
            check_shape(toml.file, pixi_table, "pixi")
            yield from pixi.table_statements(toml, ("tool", "pixi"), self.selection)

    def _requirement(self, keys: Keys, text: str, chosen: str) -> Iterator[Statement]:
        statement = self.toml.state("pip", keys, item=text)
        try:
            requirement = Requirement(statement.value)
        except InvalidRequirement:  # it is unknown, or an editable among PDM's groups
            yield statement
            return
        for name, sources in self.sources.items():
            if canonicalize_name(name) == canonicalize_name(requirement.name):
                yield from self._sourced(statement, name, sources, requirement, chosen)
                return
        yield statement

    def _sourced(
        self,
        statement: Statement,
        name: str,
        sources: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        requirement: Requirement,
        chosen: str,
    ) -> Iterator[Statement]:
        """A requirement whose packages uv takes from somewhere else."""
        toml, keys = self.toml, ("tool", "uv", "sources", name)
        candidates = [sources] if isinstance(sources, Mapping) else sources
        replaced = False
        for source in candidates:
            condition = source.get("extra") or source.get("group")
            if condition not in (None, chosen):
                continue
            marker = source.get("marker", "")
            if not pythons_of(marker):
                reason = f"`{marker}` does not hold on Linux"
                yield toml.state("ignored", keys, reason=reason, text=_source_text(name, source))
                continue
            if source.get("index"):
                yield self._from_index(keys, name, source)
                continue
            text = _source_text(name, source)
            if source.get("workspace"):
                source = {"path": self._member_folder(name), "editable": True}
            markers = [str(text) for text in (requirement.marker, marker) if text]
            options = {**source, "extras": sorted(requirement.extras)}
            if markers:
                options["marker"] = " and ".join(f"({text})" for text in markers)
            replaced = True
            value = table_requirement(requirement.name, options)
            yield toml.state("pip", keys, value, text=text)
        if not replaced:
            yield statement

    def _from_index(self, keys: Keys, name: str, source: Mapping[str, Any]) -> Statement:
        for index in self.toml.value("tool", "uv", "index") or ():
            if index.get("name") == source["index"]:
                return self.toml.state(
                    "index", keys, index["url"], text=_source_text(name, source), packages=(name,)
                )
        return self.toml.state(
            "unknown",
            keys,
            text=_source_text(name, source),
            reason=f"there is no index `{source['index']}` in this file",
        )

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

    def _optional(
        self, option: str, keys: Keys, lists: Mapping[str, Sequence[Any]]
    ) -> Iterator[Statement]:
        """Groups or extras: those that are taken, and what the others have."""
        defaults = self.toml.value("tool", "uv", "default-groups") if option == "group" else ()
        for name, items in lists.items():
            path = (*keys, name) if name in self.toml.table(*keys) else keys
            is_default = defaults == "all" or name in (defaults or ())
            if self.selection.takes(option, name) or is_default:
                for text in self._members(lists, name, ()):
                    yield from self._requirement(path, text, name)
            elif items:
                members = list(self._members(lists, name, ()))
                yield self.selection.offer(self.toml.state("ignored", path), option, name, members)

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
            included = self._project_extras(item)
            if included is None:
                yield item
            for extra in included or ():
                optional = self.toml.table("project", "optional-dependencies")
                further = (*including, name) if lists is optional else ()
                yield from self._members(optional, extra, further)

    def _project_extras(self, item: str) -> list[str] | None:
        """The extras of the project itself that a requirement names; None for another project's."""
        try:
            requirement = Requirement(item)
        except InvalidRequirement:
            return None
        if canonicalize_name(requirement.name) != self.project_name:
            return None
        return sorted(requirement.extras)

    def _dynamic(self) -> Iterator[Statement]:
        """Requirements that the build backend finds elsewhere."""
        toml, dynamic = self.toml, self.toml.value("project", "dynamic") or ()
        setuptools = ("tool", "setuptools", "dynamic")
        hook = ("tool", "hatch", "metadata", "hooks", "requirements_txt", "files")
        paths: list[Keys] = [(*setuptools, "dependencies", "file"), hook]
        files: dict[Keys, Sequence[str]] = {keys: _texts(toml.value(*keys)) for keys in paths}
        for extra, value in toml.table(*setuptools, "optional-dependencies").items():
            keys = (*setuptools, "optional-dependencies", extra)
            if self.selection.takes("extra", extra):
                files[keys] = _texts(value.get("file"))
            else:
                names = _texts(value.get("file"))
                yield self.selection.offer(toml.state("ignored", keys), "extra", extra, names)
        for path, named in files.items():
            for name in named:
                yield toml.state("include", path, item=name)
        if "dependencies" not in dynamic or any(files.values()) or toml.table("tool", "poetry"):
            return
        backend = toml.value("build-system", "build-backend") or "setuptools.build_meta"
        is_setup = backend.startswith("setuptools")
        yield toml.state(
            "note" if is_setup else "unknown",
            ("project", "dynamic"),
            item="dependencies",
            reason="setup.py or setup.cfg states the dependencies"
            if is_setup
            else f"{backend} computes the dependencies when the project is built",
            next_step="provision import setup.py"
            if is_setup
            else f"uv pip compile {toml.file} --output-file requirements.txt",
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
            cuda = re.fullmatch(r"cu(\d+)(\d)", backend)
            value = f"{cuda[1]}.{cuda[2]}" if cuda else backend
            kind: Kind = "cuda" if cuda or backend == "cpu" else "ignored"
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
        toml, pdm = self.toml, ("tool", "pdm")
        for number, source in enumerate(toml.value(*pdm, "source") or ()):
            packages = tuple(source.get("include_packages") or ())
            kind: Kind = "find-links" if source.get("type") == "find_links" else "index"
            keys = (*pdm, "source")
            yield toml.state(kind, keys, item=source["url"], index=number, packages=packages)
        overrides = (*pdm, "resolution", "overrides")
        for name, version in toml.table(*overrides).items():
            value = table_requirement(name, {"version": version})
            yield toml.state("constraint", (*overrides, name), value, reason=_OVERRIDES)

    def _hatch(self) -> Iterator[Statement]:
        """Hatch's environments: `default` is what `hatch shell` enters, others are groups."""
        toml, optional = self.toml, self.toml.table("project", "optional-dependencies")
        for name, environment in toml.table("tool", "hatch", "envs").items():
            keys = ("tool", "hatch", "envs", name)
            requirements = [
                ((*keys, key), text)
                for key in ("dependencies", "extra-dependencies")
                for text in environment.get(key) or ()
            ]
            for extra in environment.get("features") or ():
                members = self._members(optional, extra, (name,))
                requirements += [((*keys, "features"), text) for text in members]
            if name == "default" or self.selection.takes("group", name):
                for path, text in requirements:
                    yield from self._requirement(path, text, "")
                if environment.get("python"):
                    yield toml.state("python", (*keys, "python"), f"=={environment['python']}.*")
            elif requirements:
                texts = [text for _, text in requirements]
                yield self.selection.offer(toml.state("ignored", keys), "group", name, texts)


def _texts(value: Any) -> list[str]:
    """The texts of a key that has one or several."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


def _source_text(name: str, source: Mapping[str, Any]) -> str:
    """One of a package's sources, as uv writes it."""
    pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
    return f"{name} = {{ {pairs} }}"
