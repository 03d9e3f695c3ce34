"""Poetry's tables in a pyproject.toml, with its `^`, `~`, `||`, sources, groups and extras.

poetry-core translates the requirements, so that they mean what they mean in Poetry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from provision.core.statements import Kind, Statement
from provision.project_files.toml_file import (
    Keys,
    Selection,
    TomlFile,
    pythons_of,
    table_requirement,
)

if TYPE_CHECKING:
    from poetry.core.constraints.version import VersionConstraint

# `poetry install` takes every group that is not optional. These hold tools for the project's own
# developers, which an environment for training does without.
DEVELOPMENT = re.compile(
    r"dev\w*|tests?|testing|docs?|lint\w*|format\w*|typing|types|quality|ci|release|build|"
    r"pre-commit|notebooks?"
)
POETRY = ("tool", "poetry")
_LOCATION = ("git", "path", "file", "url", "develop", "rev", "tag", "branch", "subdirectory")


def statements(toml: TomlFile, selection: Selection) -> Iterator[Statement]:
    """What `[tool.poetry]` states beside `[project]`."""
    poetry = toml.table(*POETRY)
    if not toml.value("project", "name"):
        yield from toml.stated({"name": ("name", "")}, POETRY)
    chosen: set[str] = set()  # the optional packages of the extras that are taken
    for extra, names in (poetry.get("extras") or {}).items():
        if selection.takes("extra", extra):
            chosen.update(canonicalize_name(name) for name in names)
        else:
            statement = toml.state("ignored", (*POETRY, "extras", extra))
            yield selection.offer(statement, "extra", extra, names)
    for source in poetry.get("source") or ():
        if source.get("url") and source.get("priority") != "explicit":
            yield toml.state("index", (*POETRY, "source"), item=source["url"])
    yield from _table(toml, (*POETRY, "dependencies"), chosen)
    groups = toml.table(*POETRY, "group")
    tables: dict[str, Keys] = {name: (*POETRY, "group", name, "dependencies") for name in groups}
    if poetry.get("dev-dependencies"):
        tables["dev"] = (*POETRY, "dev-dependencies")
    selected = {name for name in tables if selection.takes("group", name)}
    for name in list(selected):
        selected.update(groups.get(name, {}).get("include-groups") or ())
    for name, keys in tables.items():
        by_option = groups.get(name, {}).get("optional") or DEVELOPMENT.fullmatch(name)
        if name in selected or not by_option:
            yield from _table(toml, keys, chosen)
        elif toml.table(*keys):
            yield selection.offer(toml.state("ignored", keys), "group", name, toml.table(*keys))


def _table(toml: TomlFile, keys: Keys, chosen: set[str]) -> Iterator[Statement]:
    from poetry.core.constraints.version import parse_constraint

    for name, value in toml.table(*keys).items():
        path = (*keys, name)
        # Several constraints, each for a Python or a platform of its own.
        for item in value if isinstance(value, list) else [value]:
            options = item if isinstance(item, Mapping) else {"version": item}
            written = f"{name} {json.dumps(item)}" if isinstance(value, list) else ""
            if set(options) == {"source"}:  # [project] has the version
                yield _source(toml, path, name, options["source"])
                continue
            # What is optional is offered with its extra.
            if options.get("optional") and canonicalize_name(name) not in chosen:
                continue
            version = str(options.get("version", ""))
            kind: Kind = "python" if name == "python" else "pip"
            try:
                if kind == "python":
                    stated = _specifier(parse_constraint(version))
                else:
                    stated = _requirement(name, options)
            except ValueError as error:
                yield toml.state("unknown", path, text=written, reason=str(error))
                continue
            reason = f"Poetry's `{version}`" if re.match(r"\^|~(?!=)", version) else ""
            statement = toml.state(kind, path, stated, text=written, reason=reason)
            requirement = statement.requirement
            if options.get("source") and (not requirement or pythons_of(requirement.marker)):
                yield _source(toml, path, name, options["source"])
            yield statement


def _source(toml: TomlFile, keys: Keys, name: str, source: str) -> Statement:
    for entry in toml.value(*POETRY, "source") or ():
        if entry.get("name") == source and entry.get("url"):
            return toml.state("index", keys, entry["url"], packages=(name,))
    if source.lower() == "pypi":
        return toml.state("ignored", keys, reason="it is the default index")
    return toml.state("unknown", keys, reason=f"there is no source `{source}`")


def _requirement(name: str, options: Mapping[str, Any]) -> str:
    """A dependency as PEP 508 or `-e PATH`. Raises ValueError for what Poetry itself does not
    understand, or PEP 508 cannot say."""
    from poetry.core.factory import Factory

    conditions = {key: value for key, value in options.items() if key not in _LOCATION}
    if options.get("markers"):
        Marker(str(options["markers"]))  # poetry-core refuses it with an error of its parser's own
    # By PEP 440 a range has no local version; the source of such wheels says which they are.
    conditions["version"] = re.sub(
        r"((?:\^|~|>=?|<=?)\s*[\d.]+)\+\w+", r"\1", str(conditions.get("version", "*"))
    )
    dependency = Factory.create_dependency(name, conditions)
    specifier = _specifier(dependency.constraint)
    if "||" in specifier:
        raise ValueError(f"PEP 508 has no `or`: write one of the ranges of `{specifier}`")
    requirement = Requirement(dependency.to_pep_508())
    table = {
        **{key: options[key] for key in _LOCATION if key in options},
        "editable": options.get("develop"),
        "extras": sorted(requirement.extras),
        "marker": str(requirement.marker or ""),
        "version": specifier,
    }
    return table_requirement(name, table)


def _specifier(constraint: VersionConstraint) -> str:
    """A constraint as PEP 440 writes it, ranges of Python joined by `||`; empty if any version is
    allowed."""
    return "" if constraint.is_any() else re.sub(r"^(?=\d)", "==", str(constraint))
