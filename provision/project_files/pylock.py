"""pylock.toml (PEP 751), as uv, pip, PDM and `provision lock export` write it; read by packaging's
implementation of the standard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from packaging.pylock import Pylock, PylockValidationError

from provision.core.errors import InvalidSpec
from provision.core.statements import Statement
from provision.project_files.toml_file import PYTHONS, Selection, TomlFile, parse_document


def statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a pylock.toml states. Raises InvalidSpec if the standard refuses it."""
    document = parse_document(file, text)
    try:
        lock = Pylock.from_dict(document)
    except (PylockValidationError, ValueError) as error:
        raise InvalidSpec(
            f"{file} is not a pylock.toml: {error}.",
            advice="Write it again with the tool that made it.",
        ) from error
    toml = TomlFile(file=file, text=text, document=document)
    result = list(toml.stated({"requires-python": ("python", "")}))
    defaults = lock.default_groups or ()
    groups = [name for name in lock.dependency_groups or () if selection.takes("group", name)]
    chosen: dict[str, Set[str]] = {
        "extras": {name for name in lock.extras or () if selection.takes("extra", name)},
        "dependency_groups": {*groups, *defaults},
    }
    for index, (locked, package) in enumerate(
        zip(lock.packages, document["packages"], strict=True)
    ):
        marker = locked.marker
        if not re.search(r"\b(extras|dependency_groups)\b", str(marker or "")):
            result += _package(toml, index, package, str(marker or ""))
        elif marker and any(
            marker.evaluate({"python_version": python, **chosen}, context="lock_file")
            for python in PYTHONS
        ):
            result += _package(toml, index, package, "")
        else:
            # Of an extra or a group that is not taken.
            named = re.search(r"\"(\S+)\" in (?:dependency_)?(extra|group)s", str(marker))
            statement = toml.state(
                "ignored",
                ("packages",),
                item=package["name"],
                index=index,
                reason=f"its marker does not hold: {marker}",
                next_step=f"{selection.command} --{named[2]} {named[1]}" if named else "",
            )
            result.append(statement)
    for statement in toml.stated({"tool.provision.conda": ("conda", "")}):
        result.append(replace(statement, exported=True))
    return result


def _package(
    toml: TomlFile, index: int, package: Mapping[str, Any], marker: str
) -> Iterator[Statement]:
    vcs = package.get("vcs") or {}
    name, system = package["name"], vcs.get("type", "git")
    if system != "git":
        reason = f"it is a repository of {system}, and uv reads those of git"
        yield toml.state("unknown", ("packages",), item=name, index=index, reason=reason)
        return
    options = {
        **(package.get("directory") or package.get("archive") or {}),
        "marker": marker,
        "git": vcs.get("url") or vcs.get("path"),
        "rev": vcs.get("commit-id"),
        "subdirectory": vcs.get("subdirectory"),
    }
    files = [*package.get("wheels", ()), package.get("sdist", {})]
    address = package.get("index") or files[0].get("url", "")
    version = package.get("version", "")
    yield from toml.locked(("packages",), index, name, version, options, address, item=name)
