"""pylock.toml (PEP 751), as uv, pip, PDM and `provision lock export` write it; read by packaging's
implementation of the standard.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from packaging.pylock import Package, Pylock, PylockValidationError

from provision.core.errors import InvalidSpec
from provision.project_files.statements import Statement
from provision.project_files.toml_file import (
    PYTHONS,
    Selection,
    TomlFile,
    parse_toml,
    table_requirement,
)


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a pylock.toml states. Raises InvalidSpec if the standard refuses it."""
    document = parse_toml(file, text)
    try:
        lock = Pylock.from_dict(document)
    except (PylockValidationError, ValueError) as error:
        raise InvalidSpec(
            f"{file} is no pylock.toml: {error}.",
            advice="Write it anew with the tool that made it.",
        ) from error
    toml = TomlFile(file=file, text=text, document=document)
    selection = selection or Selection()
    result = []
    if lock.requires_python:
        result.append(toml.state("python", ("requires-python",), str(lock.requires_python)))
    chosen: dict[str, set[str]] = {
        "extras": {str(name) for name in lock.extras or () if selection.takes("extra", name)},
        "dependency_groups": {
            str(name)
            for name in lock.dependency_groups or ()
            if selection.takes("group", name) or name in (lock.default_groups or ())
        },
    }
    for index, package in enumerate(lock.packages):
        result += _package(toml, index, package, chosen, selection.command)
    for conda in toml.value("tool", "provision", "conda") or ():
        statement = toml.state("conda", ("tool", "provision", "conda"), item=str(conda))
        result.append(dataclasses.replace(statement, exported=True))
    return result


def _package(
    toml: TomlFile, index: int, package: Package, chosen: Mapping[str, set[str]], command: str
) -> Iterator[Statement]:
    """index: among the lock's packages. chosen: values of the variables that only a lock's markers
    have."""
    marker = package.marker
    options: dict[str, object] = {"marker": str(marker or "")}
    if marker and re.search(r"\b(extras|dependency_groups)\b", str(marker)):
        if not any(
            marker.evaluate({"python_version": python, **chosen}, context="lock_file")
            for python in PYTHONS
        ):
            names = re.findall(r"\"(\S+)\" in (extra|dependency_group)s", str(marker))
            option = f"--{names[0][1].rpartition('_')[2]} {names[0][0]}" if names else ""
            yield toml.state(
                "ignored",
                ("packages",),
                item=package.name,
                index=index,
                reason=f"its marker does not hold: {marker}",
                next_step=f"{command} {option}" if option else "",
            )
            return
        options = {}
    if package.vcs and package.vcs.type != "git":
        reason = f"it is a repository of {package.vcs.type}, and uv reads those of git"
        yield toml.state("unknown", ("packages",), item=package.name, index=index, reason=reason)
        return
    address = package.index or ""
    if package.vcs:
        options["git"] = package.vcs.url or package.vcs.path
        options["rev"] = package.vcs.commit_id
        options["subdirectory"] = package.vcs.subdirectory
    elif package.directory:
        options["path"], options["editable"] = package.directory.path, package.directory.editable
    elif package.archive:
        options["url"], options["path"] = package.archive.url, package.archive.path
    else:
        options["version"] = f"=={package.version}" if package.version else "*"
        files = [*(package.wheels or ()), *([package.sdist] if package.sdist else ())]
        address = address or next((file.url for file in files if file.url), "")
    value = table_requirement(package.name, options)
    text = f"{package.name} {package.version or ''}".strip()
    yield toml.state("pip", ("packages",), value, item=package.name, text=text, index=index)
    build = re.match(r".*/whl/(?:cu\d+|cpu)(?=/|$)", address)
    if build:
        yield toml.state(
            "index",
            ("packages",),
            build[0],
            item=package.name,
            text=build[0],
            index=index,
            packages=(package.name,),
        )
