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
from provision.project_files.statements import Statement
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
_UV_SETTINGS = {
    "environments": "the platform is chosen in spec.yml",
    "required-environments": "the platform is chosen in spec.yml",
    "no-build-isolation-package": "packages that need torch are built against the locked torch",
    "extra-build-dependencies": "packages that need torch are built against the locked torch",
    "no-build-isolation": "packages that need torch are built against the locked torch",
    "build-constraint-dependencies": "it constrains builds of packages, not the environment",
    "prerelease": "spec.yml has no such setting; name the release that you want",
    "resolution": "spec.yml has no such setting; name the release that you want",
    "exclude-newer": "spec.yml has no such setting; the lock records the releases",
    "dependency-metadata": "spec.yml has no such setting; the packages' own metadata is read",
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
    return list(reader.statements())


class _PyProject:
    """One pyproject.toml. The tables share uv's sources, the project's name and the selection."""

    def __init__(self, toml: TomlFile, selection: Selection) -> None:
        self.toml = toml
        self.selection = selection
        self.sources = toml.table("tool", "uv", "sources")
        self.project_name = canonicalize_name(str(toml.value("project", "name") or ""))

    def statements(self) -> Iterator[Statement]:
        toml = self.toml
        if toml.value("project", "name"):
            yield toml.state("name", ("project", "name"), toml.value("project", "name"))
        if toml.value("project", "requires-python"):
            keys = ("project", "requires-python")
            yield toml.state("python", keys, toml.value(*keys))
        yield from self._list(("project", "dependencies"))
        yield from self._dynamic()
        extras = toml.table("project", "optional-dependencies")
        yield from self._optional("extra", ("project", "optional-dependencies"), extras)
        groups = toml.table("dependency-groups")
        defaults = toml.value("tool", "uv", "default-groups") or ()
        yield from self._optional("group", ("dependency-groups",), groups, defaults)
        yield from self._uv()
        yield from self._pdm()
        yield from self._hatch()
        yield from self._flit()
        dev = toml.value("tool", "rye", "dev-dependencies") or ()
        yield from self._optional("group", ("tool", "rye", "dev-dependencies"), {"dev": dev})
        if toml.table("tool", "poetry"):
            yield from poetry.statements(toml, self.selection)
        if toml.table("tool", "pixi"):
            check_shape(toml.file, toml.table("tool", "pixi"), "pixi")
            yield from pixi.table_statements(toml, ("tool", "pixi"), self.selection)
        requires = toml.value("build-system", "requires") or ()
        for requirement in requires:
            yield toml.state(
                "ignored",
                ("build-system", "requires"),
                item=requirement,
                reason="it builds the project itself, apart from the environment",
            )

    def _list(
        self, keys: Keys, requirements: Sequence[str] | None = None, chosen: str = ""
    ) -> Iterator[Statement]:
        """A list of requirements. chosen: the extra or group that it belongs to."""
        if requirements is None:
            requirements = self.toml.value(*keys) or ()
        for text in requirements:
            yield from self._requirement(keys, text, chosen)

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
                yield toml.state("ignored", keys, reason=reason, text=_shown(name, source))
                continue
            if source.get("index"):
                yield self._from_index(keys, name, source)
                continue
            text = _shown(name, source)
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
                    "index", keys, index["url"], text=_shown(name, source), packages=(name,)
                )
        return self.toml.state(
            "unknown",
            keys,
            text=_shown(name, source),
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
        self,
        option: str,
        keys: Keys,
        lists: Mapping[str, Sequence[Any]],
        defaults: Sequence[str] | str = (),
    ) -> Iterator[Statement]:
        """Groups or extras: those that are taken, and what the others have."""
        for name, items in lists.items():
            path = (*keys, name) if name in self.toml.table(*keys) else keys
            is_default = defaults == "all" or name in defaults
            if self.selection.takes(option, name) or is_default:
                for text in self._members(lists, name, ()):
                    yield from self._requirement(path, text, name)
            elif items:
                members = list(self._members(lists, name, ()))
                yield self.selection.offer(self.toml, option, name, path, members)

    def _members(
        self, lists: Mapping[str, Sequence[Any]], name: str, seen: tuple[str, ...]
    ) -> Iterator[str]:
        """The requirements of a group or an extra, and of those that it includes."""
        by_name = {canonicalize_name(key): items for key, items in lists.items()}
        name = canonicalize_name(name)
        if name in seen:
            raise InvalidSpec(
                f"{self.toml.file}: the group `{name}` includes itself.",
                advice="Remove one of the inclusions.",
            )
        if name not in by_name:
            raise InvalidSpec(
                f"{self.toml.file}: `{seen[-1]}` includes `{name}`, which is not there.",
                advice=f"The file has: {', '.join(sorted(by_name))}.",
            )
        for item in by_name[name]:
            if isinstance(item, Mapping):
                yield from self._members(lists, item["include-group"], (*seen, name))
                continue
            included = self._own_extras(item)
            if included is None:
                yield item
            for extra in included or ():
                optional = self.toml.table("project", "optional-dependencies")
                further = (*seen, name) if lists is optional else ()
                yield from self._members(optional, extra, further)

    def _own_extras(self, item: str) -> list[str] | None:
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
        toml = self.toml
        dynamic = toml.value("project", "dynamic") or ()
        setuptools = ("tool", "setuptools", "dynamic")
        hook = ("tool", "hatch", "metadata", "hooks", "requirements_txt")
        for key in ("dependencies", "optional-dependencies", "requires-python"):
            if key not in dynamic:
                continue
            files = [(hook, file) for file in toml.value(*hook, "files") or ()]
            backend = toml.value("build-system", "build-backend") or "setuptools.build_meta"
            if key == "dependencies":
                files += _named_files((*setuptools, key), toml.value(*setuptools, key))
            elif key == "optional-dependencies":
                files = []
                for extra, value in toml.table(*setuptools, key).items():
                    if self.selection.takes("extra", extra):
                        files += _named_files((*setuptools, key, extra), value)
                    else:
                        keys = (*setuptools, key, extra)
                        names = [name for _, name in _named_files(keys, value)]
                        yield self.selection.offer(toml, "extra", extra, keys, names)
            for keys, file in files:
                yield toml.state("include", keys, file, text=f"{key}: {file}")
            if files or toml.table(*setuptools, key) or toml.table("tool", "poetry"):
                continue
            if backend.startswith("setuptools"):
                reason = f"{key} is dynamic: setup.py or setup.cfg states it"
                next_step = "provision import setup.py"
                keys = ("project", "dynamic")
                yield toml.state("note", keys, item=key, reason=reason, next_step=next_step)
                continue
            yield toml.state(
                "unknown",
                ("project", "dynamic"),
                item=key,
                reason=f"{backend} computes it when the project is built",
                next_step=f"uv pip compile {toml.file} --output-file requirements.txt",
            )

    def _uv(self) -> Iterator[Statement]:
        toml, uv = self.toml, ("tool", "uv")
        dev = toml.value(*uv, "dev-dependencies") or ()
        yield from self._optional("group", (*uv, "dev-dependencies"), {"dev": dev})
        sources = [
            source
            for value in self.sources.values()
            for source in ([value] if isinstance(value, Mapping) else value)
        ]
        used = {source.get("index") for source in sources}
        for index in toml.value(*uv, "index") or ():
            keys, name = (*uv, "index"), index.get("name")
            if not index.get("explicit"):
                yield toml.state("index", keys, item=index["url"])
            elif name not in used:
                reason = "it is explicit, and no package names it"
                yield toml.state("ignored", keys, item=index["url"], reason=reason)
        for table in (uv, (*uv, "pip")):
            for key in ("index-url", "extra-index-url"):
                for address in _texts(toml.value(*table, key)):
                    yield toml.state("index", (*table, key), item=address)
            for address in _texts(toml.value(*table, "find-links")):
                yield toml.state("find-links", (*table, "find-links"), item=address)
        torch_backend = toml.value(*uv, "pip", "torch-backend")
        if torch_backend:
            keys = (*uv, "pip", "torch-backend")
            cuda = re.fullmatch(r"cu(\d+)(\d)|cpu", torch_backend)
            if cuda:
                yield toml.state("cuda", keys, f"{cuda[1]}.{cuda[2]}" if cuda[1] else "cpu")
            else:
                yield toml.state("ignored", keys, reason="it names no CUDA version")
        for text in toml.value(*uv, "constraint-dependencies") or ():
            yield toml.state("constraint", (*uv, "constraint-dependencies"), item=text)
        for text in toml.value(*uv, "override-dependencies") or ():
            reason = "spec.yml has no overrides; it is taken as a constraint"
            yield toml.state("constraint", (*uv, "override-dependencies"), item=text, reason=reason)
        self._check_conflicts()
        for key, reason in _UV_SETTINGS.items():
            if toml.value(*uv, key) is not None:
                yield toml.state("ignored", (*uv, key), reason=reason)

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
        keys = (*pdm, "dev-dependencies")
        yield from self._optional("group", keys, toml.table(*keys))
        for source in toml.value(*pdm, "source") or ():
            packages = tuple(source.get("include_packages") or ())
            kind = "find-links" if source.get("type") == "find_links" else "index"
            yield toml.state(kind, (*pdm, "source"), item=source["url"], packages=packages)
        overrides = (*pdm, "resolution", "overrides")
        for name, version in toml.table(*overrides).items():
            reason = "spec.yml has no overrides; it is taken as a constraint"
            value = table_requirement(name, {"version": version})
            yield toml.state("constraint", (*overrides, name), value, reason=reason)

    def _hatch(self) -> Iterator[Statement]:
        """Hatch's environments: `default` is what `hatch shell` enters, others are groups."""
        toml = self.toml
        for name, environment in toml.table("tool", "hatch", "envs").items():
            keys = ("tool", "hatch", "envs", name)
            lists = ("dependencies", "extra-dependencies")
            requirements = [item for key in lists for item in environment.get(key) or ()]
            if name != "default" and not self.selection.takes("group", name):
                if requirements:
                    yield self.selection.offer(toml, "group", name, keys, requirements)
                continue
            for key in lists:
                yield from self._list((*keys, key))
            if environment.get("python"):
                python = str(environment["python"])
                yield toml.state("python", (*keys, "python"), f"=={python}.*")
            optional = toml.table("project", "optional-dependencies")
            for extra in environment.get("features") or ():
                for text in self._members(optional, extra, (name,)):
                    yield from self._requirement((*keys, "features"), text, extra)

    def _flit(self) -> Iterator[Statement]:
        """Flit's tables before PEP 621."""
        flit = ("tool", "flit", "metadata")
        yield from self._list((*flit, "requires"))
        if self.toml.value(*flit, "requires-python"):
            keys = (*flit, "requires-python")
            yield self.toml.state("python", keys, self.toml.value(*keys))
        extras = self.toml.table(*flit, "requires-extra")
        yield from self._optional("extra", (*flit, "requires-extra"), extras)


def _named_files(keys: Keys, value: Mapping[str, Any] | None) -> list[tuple[Keys, str]]:
    """The files of setuptools' `{file = ...}`."""
    files = (value or {}).get("file") or ()
    return [(keys, file) for file in _texts(files)]


def _texts(value: str | Sequence[str] | None) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or ()


def _shown(name: str, source: Mapping[str, Any]) -> str:
    """One of a package's sources, as uv writes it."""
    pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
    return f"{name} = {{ {pairs} }}"
