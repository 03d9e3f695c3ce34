"""Pipfile: Pipenv's packages, categories and sources."""

from __future__ import annotations

from provision.project_files.statements import Statement
from provision.project_files.toml_file import (
    Selection,
    TomlFile,
    check_shape,
    parse_toml,
    table_requirement,
)

# The tables of a Pipfile that are not categories of packages.
_SETTINGS = ("source", "requires", "scripts", "pipenv", "packages")


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a Pipfile states. Raises InvalidSpec if it is malformed."""
    document = parse_toml(file, text)
    check_shape(file, document, "pipfile")
    toml = TomlFile(file=file, text=text, document=document)
    selection = selection or Selection()
    result = []
    for key in ("python_version", "python_full_version"):
        version = toml.value("requires", key)
        if version:
            suffix = ".*" if key == "python_version" else ""
            result.append(toml.state("python", ("requires", key), f"=={version}{suffix}"))
            break
    named = {
        str(options["index"])
        for table in document.values()
        if isinstance(table, dict)
        for options in table.values()
        if isinstance(options, dict) and "index" in options
    }
    addresses = {}
    for source in document.get("source") or ():
        addresses[source.get("name")] = source["url"]
        if source.get("name") not in named:
            result.append(toml.state("index", ("source",), item=source["url"]))
    for category in document:
        if category in _SETTINGS and category != "packages":
            continue
        packages = toml.table(category)
        group = category.removesuffix("-packages")
        if category != "packages" and not selection.takes("group", group):
            if packages:
                result.append(
                    selection.offer(
                        toml.state("ignored", (category,)), "group", group, list(packages)
                    )
                )
            continue
        for name, value in packages.items():
            keys = (category, name)
            options = {"version": value} if isinstance(value, str) else value
            result.append(toml.state("pip", keys, table_requirement(name, options)))
            index = options.get("index")
            if index and index not in addresses:
                reason = f"there is no source `{index}` in this file"
                result.append(toml.state("unknown", keys, reason=reason))
            elif index:
                result.append(toml.state("index", keys, addresses[index], packages=(name,)))
    return result
