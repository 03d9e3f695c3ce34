"""Pipfile: Pipenv's packages, categories and sources."""

from __future__ import annotations

from collections.abc import Iterator

from provision.core.statements import Statement
from provision.project_files.toml_file import Selection, TomlFile, read_toml

# The tables of a Pipfile that are not categories of packages.
_SETTINGS = ("source", "requires", "scripts", "pipenv")


def statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a Pipfile states. Raises InvalidSpec if it is malformed."""
    stated = _statements(read_toml(file, text, "pipfile"), selection)
    return sorted(stated, key=lambda statement: statement.line or 0)


def _statements(toml: TomlFile, selection: Selection) -> Iterator[Statement]:
    for key in ("python_version", "python_full_version"):
        python = toml.value("requires", key)
        if python:
            specifier = f"=={python}.*" if key == "python_version" else f"=={python}"
            yield toml.state("python", ("requires", key), specifier)
            break
    sources = {entry.get("name"): entry["url"] for entry in toml.value("source") or ()}
    named = set()
    for category in toml.document:
        packages = toml.table(category)
        group = category.removesuffix("-packages").replace("develop", "dev")
        if category in _SETTINGS or not packages:
            continue
        if category == "packages" or selection.takes("group", group):
            yield from toml.requirements((category,), sources)
        else:
            yield selection.offer(toml.state("ignored", (category,)), "group", group, packages)
        named |= {value.get("index") for value in packages.values() if isinstance(value, dict)}
    for name, address in sources.items():
        if name not in named:
            yield toml.state("index", ("source",), item=address)
