"""Poetry's tables in a pyproject.toml, with its `^`, `~`, `||`, sources, groups and extras.

poetry-core translates the requirements, so that they mean what they mean in Poetry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from provision.project_files.statements import Statement
from provision.project_files.toml_file import Keys, Selection, TomlFile, git_address, relative_path

if TYPE_CHECKING:
    from poetry.core.constraints.version import VersionConstraint

# `poetry install` takes every group that is not optional. These hold tools for the project's own
# developers, which an environment for training does without.
DEVELOPMENT = re.compile(
    r"dev\w*|tests?|testing|docs?|lint\w*|format\w*|typing|types|quality|ci|release|build|"
    r"pre-commit|notebooks?"
)
POETRY = ("tool", "poetry")


def statements(toml: TomlFile, selection: Selection) -> Iterator[Statement]:
    """What `[tool.poetry]` states beside `[project]`."""
    poetry = toml.table(*POETRY)
    if poetry.get("name") and not toml.value("project", "name"):
        yield toml.state("name", (*POETRY, "name"), poetry["name"])
    extras = poetry.get("extras") or {}
    chosen: set[str] = {
        canonicalize_name(name)
        for extra, names in extras.items()
        if selection.takes("extra", extra)
        for name in names
    }
    reader = _Poetry(toml, chosen)
    yield from reader.table((*POETRY, "dependencies"))
    for extra, names in extras.items():
        if not selection.takes("extra", extra):
            yield selection.offer(
                toml.state("ignored", (*POETRY, "extras", extra)), "extra", extra, names
            )
    for source in poetry.get("source") or ():
        priority = source.get("priority", "primary")
        if source.get("url") and priority != "explicit":
            yield toml.state("index", (*POETRY, "source"), item=source["url"])
    groups: dict[str, Keys] = {
        name: (*POETRY, "group", name, "dependencies") for name in toml.table(*POETRY, "group")
    }
    if poetry.get("dev-dependencies"):
        groups["dev"] = (*POETRY, "dev-dependencies")
    included = {
        group
        for name in groups
        if selection.takes("group", name)
        for group in toml.value(*POETRY, "group", name, "include-groups") or ()
    }
    for name, keys in groups.items():
        by_option = toml.value(*POETRY, "group", name, "optional") or DEVELOPMENT.fullmatch(name)
        if not by_option or name in included or selection.takes("group", name):
            yield from reader.table(keys)
        elif toml.table(*keys):
            yield selection.offer(
                toml.state("ignored", keys), "group", name, list(toml.table(*keys))
            )


class _Poetry:
    """One pyproject.toml. chosen: the optional packages of the extras that are taken."""

    def __init__(self, toml: TomlFile, chosen: set[str]) -> None:
        self.toml = toml
        self.chosen = chosen

    def table(self, keys: Keys) -> Iterator[Statement]:
        """A table of dependencies."""
        for name, value in self.toml.table(*keys).items():
            if name == "python":
                yield self._python((*keys, name), value)
                continue
            # Several constraints, each for a Python or a platform of its own.
            for item in value if isinstance(value, list) else [value]:
                options = item if isinstance(item, Mapping) else {"version": item}
                yield from self._dependency((*keys, name), name, options)

    def _python(self, keys: Keys, value: str) -> Statement:
        from poetry.core.constraints.version import parse_constraint

        try:
            constraint, reason = _newest_range(parse_constraint(value))
        except ValueError as error:
            return self.toml.state("unknown", keys, reason=str(error))
        specifier = str(constraint)
        if specifier[0].isdigit():
            specifier = f"=={specifier}"
        reason = reason or (f"Poetry's `{value}`" if specifier != value else "")
        return self.toml.state("python", keys, specifier.replace("*", ""), reason=reason)

    def _dependency(self, keys: Keys, name: str, options: Mapping[str, Any]) -> Iterator[Statement]:
        if options.get("source"):
            yield self._source(keys, name, options["source"])
        if options.get("optional") and canonicalize_name(name) not in self.chosen:
            return  # offered with its extra
        try:
            value, reason = _requirement(name, options)
        except ValueError as error:
            yield self.toml.state("unknown", keys, reason=str(error))
            return
        if set(options) == {"source"}:
            return  # [project] has its version
        version = str(options.get("version", ""))
        if version and not reason and version[0] in "^~" and version[:2] != "~=":
            reason = f"Poetry's `{version}`"
        yield self.toml.state("pip", keys, value, reason=reason)

    def _source(self, keys: Keys, name: str, source: str) -> Statement:
        for entry in self.toml.value(*POETRY, "source") or ():
            if entry.get("name") == source and entry.get("url"):
                return self.toml.state("index", keys, entry["url"], packages=(name,))
        if source.lower() == "pypi":
            return self.toml.state("ignored", keys, reason="it is the default index")
        return self.toml.state("unknown", keys, reason=f"there is no source `{source}`")


def _requirement(name: str, options: Mapping[str, Any]) -> tuple[str, str]:
    """A dependency as PEP 508 or `-e PATH`, and a reason if that is not quite the same.

    Raises ValueError for what Poetry itself does not understand.
    """
    from poetry.core.factory import Factory

    located = ("git", "path", "file", "url", "develop", "rev", "tag", "branch", "subdirectory")
    conditions = {key: value for key, value in options.items() if key not in located}
    if options.get("markers"):
        Marker(str(options["markers"]))  # poetry-core refuses it with an error of its parser's own
    conditions["version"] = str(conditions.get("version", "*"))
    dependency = Factory.create_dependency(name, conditions)
    constraint, reason = _newest_range(dependency.constraint)
    dependency.constraint = constraint
    requirement = Requirement(dependency.to_pep_508())
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    path = options.get("path") or options.get("file")
    if path and options.get("develop"):
        return f"-e {relative_path(path)}{extras}", reason
    address = options.get("url") or (path and relative_path(path))
    if options.get("git"):
        address = git_address(options)
    specifier = "" if constraint.is_any() else str(constraint)
    if specifier[:1].isdigit():
        specifier = f"=={specifier}"
    text = f"{name}{extras} @ {address}" if address else f"{name}{extras}{specifier}"
    return f"{text} ; {requirement.marker}" if requirement.marker else text, reason


def _newest_range(constraint: VersionConstraint) -> tuple[VersionConstraint, str]:
    """A constraint that PEP 440 can express: of ranges joined by `||`, the newest; and why."""
    from poetry.core.constraints.version import VersionUnion

    if isinstance(constraint, VersionUnion) and "||" in str(constraint):
        newest = constraint.ranges[-1]
        return newest, f"of `{constraint}` the newest range is taken: PEP 508 has no `or`"
    return constraint, ""
