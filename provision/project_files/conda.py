"""conda's files -> statements: environment.yml, what `conda env export` and `conda list` print, lists
of addresses (`@EXPLICIT`), and conda-lock.yml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.core.checked_yaml import parse_checked_yaml
from provision.core.package_names import archive_stem, url_filename
from provision.core.platforms import PLATFORM
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Statement
from provision.core.yaml_text import YamlLines
from provision.project_files.rules import table

ADVICE = "Correct the file."
_EXPORTED = re.compile(r"(?:\S+::)?([\w.-]+)=[^=]+(=[^=\s]+)?")
_SELECTOR = re.compile(r"#\s*\[\s*(win|osx|not linux|unix and not linux)\w*\s*\]")
# Header of `conda list`, and of `conda list --export`.
LIST_HEADER = re.compile(
    r"^# (packages in environment at|This file may be used to create an environment)",
    re.MULTILINE,
)
EXPLICIT = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)


def environment_statements(file: str, text: str, selection: object) -> list[Statement]:
    """An environment.yml, or what `conda env export` printed. Raises InvalidSpec with all that is of
    another form, each with its line."""
    document, lines = parse_checked_yaml(Path(file), text, "conda-environment", advice=ADVICE)
    rules = table("environment")
    is_export = _is_export(document)
    statements: list[Statement] = []
    for key, value in document.items():
        kind, *reason = rules.get(key, ["unknown", "it is not a key of an environment.yml"])
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            line = lines.line((key, index) if isinstance(value, list) else (key,))
            written = str(item) if isinstance(value, list) else f"{key}: {item}"
            statement = Statement(file=file, line=line, text=written, kind=kind, value=str(item))
            statement = statement.because("".join(reason))
            if isinstance(item, Mapping) and key == "dependencies":
                statements += _sections(file, lines, index, item)
                continue
            if _SELECTOR.search(text.splitlines()[line - 1]):
                selector = "its selector is for other systems than Linux"
                statement = statement.because(selector, kind="ignored")
            if item is not None:
                statements.append(replace(statement, exported=is_export))
    return statements


def _sections(
    file: str, lines: YamlLines, index: int, sections: Mapping[str, Any]
) -> Iterator[Statement]:
    """The requirements of `pip:`, and sections for other tools."""
    for tool, items in sections.items():
        path = ("dependencies", index, tool)
        if tool != "pip":
            text, reason = f"{tool}: {items}", "of other tools' sections only `pip:` is known"
            yield Statement(
                file=file, line=lines.line(path), text=text, kind="unknown", reason=reason
            )
            continue
        for number, item in enumerate(items or ()):
            yield from parse_lines(item, file, lines.line((*path, number)))


def _is_export(document: Mapping[str, Any]) -> bool:
    """Whether an environment.yml lists everything that is installed, requested or not."""
    packages = [item for item in document["dependencies"] if isinstance(item, str)]
    matches = list(filter(None, map(_EXPORTED.fullmatch, packages)))
    if len(matches) < len(packages):
        return False
    has_builds = len(matches) > 1 and all(match[2] for match in matches)
    return has_builds or any(match[1] in table("everywhere") for match in matches)


def list_statements(file: str, text: str, selection: object) -> list[Statement]:
    """What `conda list --export` or `conda list` printed."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        name, version, build, channel, *_ = [*re.split(r"[=\s]+", line.strip()), "", "", "", ""]
        if build.startswith(("pypi", "<pip>")) or channel == "pypi":
            statements += parse_lines(f"{name}=={version}", file, number)
        else:
            value = "=".join(filter(None, (name, version, build)))
            statements.append(_exported(file, number, line.strip(), value))
    return statements


def explicit_statements(file: str, text: str, selection: object) -> list[Statement]:
    """A list of addresses, as `conda list --explicit` and conda-lock write it."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith(("#", "@")):
            statement = _exported(file, number, line, _package_of_archive(line))
            if not statement.value:
                reason = "it is not the address of a conda package"
                statement = statement.because(reason, kind="unknown")
            statements.append(statement)
    return statements


def _package_of_archive(address: str) -> str:
    """`name=version=build` of the address of a conda package; empty for any other address."""
    filename = url_filename(address)
    stem = archive_stem(filename)
    parts = stem.rsplit("-", 2)
    return "=".join(parts) if stem != filename and len(parts) == 3 else ""


def lock_statements(file: str, text: str, selection: object) -> list[Statement]:
    """A conda-lock.yml: the packages of one platform."""
    document, lines = parse_checked_yaml(Path(file), text, "conda-packages", advice=ADVICE)
    statements = []
    for index, package in enumerate(document["package"]):
        number = lines.line(("package", index))
        name, version, url = package["name"], package.get("version"), str(package.get("url"))
        written = f"{name} {version} ({package.get('platform')})"
        value = _package_of_archive(url) or f"{name}={version}"
        if package.get("manager") == "pip" and package.get("platform") == PLATFORM:
            requirement = f"{name} @ {url}" if url.startswith("git+") else f"{name}=={version}"
            statements += parse_lines(requirement, file, number)
            continue
        statement = _exported(file, number, written, value)
        if package.get("platform") != PLATFORM:
            statement = statement.because(f"it is not for {PLATFORM}", kind="ignored")
        statements.append(statement)
    return statements


def _exported(file: str, line: int, text: str, value: str) -> Statement:
    """A conda package of a list of everything that is installed."""
    return Statement(file=file, line=line, text=text, kind="conda", value=value, exported=True)
