"""pylock.toml (PEP 751), as uv, pip, PDM and `provision lock export` write it; read by packaging's
implementation of the standard.
"""

from __future__ import annotations

from packaging.pylock import Package, Pylock, PylockValidationError

from provision.core.errors import InvalidSpec
from provision.project_files.statements import Statement
from provision.project_files.toml_file import (
    Selection,
    TomlFile,
    holds_on_linux,
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
            f"{file} is no pylock.toml: {error}.", advice="Write it anew with the tool that made it."
        ) from error
    toml = TomlFile(file=file, text=text, document=document)
    result = []
    if lock.requires_python:
        keys = ("requires-python",)
        result.append(toml.state("python", keys, str(lock.requires_python)))
    for option, names in (("extra", lock.extras), ("group", lock.dependency_groups)):
        for name in names or ():
            (selection or Selection()).takes(option, name)
    for package in lock.packages:
        result += _package(toml, package, selection or Selection())
    return result
