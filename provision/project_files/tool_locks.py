"""poetry.lock and pdm.lock: the locked packages of the project's groups.

Neither says what the project itself requests, so every package that is taken has its locked version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name

from provision.core.requirement_lines import parse_lines
from provision.core.statements import Statement
from provision.project_files import poetry
from provision.project_files.toml_file import Selection, TomlFile, pythons_of, read_toml

Package = Mapping[str, Any]
# What the project itself needs, in the words of Poetry and PDM.
_MAIN = ("main", "default")
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")
_ALWAYS, _NEVER = "os_name == 'posix'", "os_name == ''"
_KEYS = ("package",)


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What such a file states. Raises InvalidSpec if it is malformed."""
    toml = read_toml(file, text, "tool-locks")
    return list(_statements(toml, selection or Selection()))


def _statements(toml: TomlFile, selection: Selection) -> Iterator[Statement]:
    python = toml.value("metadata", "python-versions")
    if python:
        keys = ("metadata", "python-versions")
        yield toml.state("python", keys, poetry.python_range(python)[0])
    for target in toml.value("metadata", "targets") or ():
        yield toml.state("python", ("metadata", "targets"), item=target.get("requires_python", ""))
    chosen: set[str] = set()
    for extra, names in toml.table("extras").items():
        if selection.takes("extra", extra):
            chosen.update(names)
        else:
            statement = toml.state("ignored", ("extras", extra))
            yield selection.offer(statement, "extra", extra, names)
    packages: Sequence[Package] = toml.value("package") or ()
    elsewhere = _needed_elsewhere(packages)
    for index, package in enumerate(packages):
        name, version = package["name"], package.get("version", "")
        groups = package.get("groups") or [package.get("category", "main")]
        taken = [group for group in groups if group in _MAIN or selection.takes("group", group)]
        marker = _marker(package, taken, selection)
        reason, step = "", ""
        if not taken:
            reason = f"the group `{groups[0]}` is taken on request"
            step = f"{selection.command} --group {groups[0]}"
        elif name in elsewhere:
            reason = "only packages of other systems than Linux need it"
            step = f"provision add NAME {name}=={version}"
        elif package.get("optional") and not marker and name not in chosen:
            reason = "it is optional, and no extra that is taken has it"
        if reason:
            yield toml.state(
                *("ignored", _KEYS),
                text=f"{name} {version}",
                index=index,
                reason=reason,
                next_step=step,
            )
            continue
        source = package.get("source") or {}
        address = str(source.get("url", "")) if source.get("type") == "legacy" else ""
        options = {**_origin(package, source), "marker": marker}
        yield from toml.locked(_KEYS, index, name, version, options, address)


def _marker(package: Package, groups: Sequence[str], selection: Selection) -> str:
    """The marker under which some groups need a package; conditions on extras are decided."""
    marker = package.get("markers") or package.get("marker") or ""
    if isinstance(marker, Mapping):  # by group
        markers = [marker.get(group, "") for group in groups]
        marker = " or ".join(f"({text})" for text in markers) if all(markers) else ""

    def decided(match: re.Match[str]) -> str:
        return _ALWAYS if selection.takes("extra", match[1]) else _NEVER

    return _EXTRA.sub(decided, marker)


def _origin(package: Package, source: Mapping[str, Any]) -> dict[str, Any]:
    """Where a package comes from, in the words of uv's tables. source: Poetry's, empty for PDM."""
    kind, address = source.get("type"), source.get("url")
    if kind == "git":
        folder = source.get("subdirectory")
        return {"git": address, "rev": source.get("resolved_reference"), "subdirectory": folder}
    if kind in ("directory", "file"):
        return {"path": address, "editable": package.get("develop")}
    if kind:
        return {"url": address if kind == "url" else None}
    keys = ("git", "subdirectory", "url", "path", "editable", "extras")
    origin = {key: package.get(key) for key in keys} | {"rev": package.get("revision")}
    # What Poetry lists are the extras that a package has, not those that are needed.
    return origin if isinstance(package.get("extras"), list) else origin | {"extras": None}


def _needed_elsewhere(packages: Sequence[Package]) -> set[str]:
    """The packages that others need on other systems alone. A lock with groups has markers for
    that."""
    needed: dict[str, bool] = {}
    for package in packages:
        if "groups" in package:
            return set()
        for name, marker in _dependencies(package.get("dependencies") or {}):
            name = canonicalize_name(name)
            needed[name] = needed.get(name, False) or bool(pythons_of(marker))
    return {name for name, is_needed in needed.items() if not is_needed}


def _dependencies(dependencies: Any) -> Iterator[tuple[str, str]]:
    """The names and markers of what a package needs."""
    if isinstance(dependencies, list):  # of PDM
        for text in dependencies:
            requirement = parse_lines(text)[0].requirement
            if requirement:
                yield requirement.name, requirement.marker
        return
    for name, value in dependencies.items():
        for table in value if isinstance(value, list) else [value]:
            yield name, table.get("markers", "") if isinstance(table, Mapping) else ""
