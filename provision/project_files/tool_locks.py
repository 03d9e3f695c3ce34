"""poetry.lock and pdm.lock: the locked packages of the project's groups.

Neither says what the project itself requests, so every package that is taken has its locked version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.core.statements import Statement
from provision.project_files import poetry
from provision.project_files.toml_file import Selection, TomlFile, read_toml

# What the project itself needs, in the words of Poetry and PDM.
_MAIN = ("main", "default")
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")
_KEYS = ("package",)
# Types of Poetry's sources, and the keys that have their addresses in tables of requirements.
_SOURCES = {"git": "git", "url": "url", "directory": "path", "file": "path"}


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What such a file states. Raises InvalidSpec if it is malformed."""
    toml = read_toml(file, text, "tool-locks")
    return list(_statements(toml, selection or Selection()))


def _statements(toml: TomlFile, selection: Selection) -> Iterator[Statement]:
    python = toml.value("metadata", "python-versions")
    if python:
        keys = ("metadata", "python-versions")
        yield toml.state("python", keys, poetry.python_range(python)[0])
    yield from toml.stated({"metadata.targets": ["python"]})
    for index, package in enumerate(toml.value("package")):
        name, version = package["name"], package.get("version", "")
        groups = package.get("groups") or [package.get("category", "main")]
        taken = [group for group in groups if group in _MAIN or selection.takes("group", group)]
        marker = _marker(package.get("markers") or package.get("marker") or "", taken, selection)
        reason, step = "", ""
        if not taken:
            reason = f"the group `{groups[0]}` is taken on request"
            step = f"{selection.command} --group {groups[0]}"
        elif package.get("optional") and not marker:
            reason = "it is optional, and this lock does not say for which extra"
            step = f"provision add NAME {name}=={version}"
        if reason:
            statement = toml.state("ignored", _KEYS, text=f"{name} {version}", index=index)
            yield statement.because(reason, step)
            continue
        source = package.get("source") or {}
        kind, address = source.get("type", ""), source.get("url", "")
        options = {
            **package,
            "rev": source.get("resolved_reference") or package.get("revision"),
            "subdirectory": source.get("subdirectory") or package.get("subdirectory"),
            "editable": package.get("develop") or package.get("editable"),
            "marker": marker,
            "markers": "",
        }
        options[_SOURCES.get(kind, "")] = address
        if isinstance(package.get("extras"), Mapping):  # Poetry's: those that the package has
            options["extras"] = None
        yield from toml.locked(
            _KEYS, index, name, version, options, address if kind == "legacy" else ""
        )


def _marker(marker: str | Mapping[str, Any], groups: Sequence[str], selection: Selection) -> str:
    """The marker under which some groups need a package; conditions on extras are decided."""
    if isinstance(marker, Mapping):  # by group
        markers = [marker.get(group, "") for group in groups]
        marker = " or ".join(f"({text})" for text in markers) if all(markers) else ""
    return _EXTRA.sub(
        lambda extra: f"os_name {'==' if selection.takes('extra', extra[1]) else '!='} 'posix'",
        marker,
    )
