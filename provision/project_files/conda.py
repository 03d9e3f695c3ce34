"""conda's files -> statements: environment.yml, what `conda env export` and `conda list` print, lists
of addresses (`@EXPLICIT`), and conda-lock.yml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.package_names import archive_stem, url_filename
from provision.core.platforms import PLATFORM
from provision.core.requirement_lines import parse_lines
from provision.core.yaml_text import YamlError, YamlLines, compose_yaml, parse_yaml
from provision.project_files.requirements import statements_of
from provision.project_files.statements import Kind, Statement

# Packages that nobody requests by name, and every environment of conda has: where one of them is
# listed, everything is.
_EVERYWHERE = {
    "_libgcc_mutex",
    "_openmp_mutex",
    "ca-certificates",
    "libcxx",
    "libgcc",
    "libgcc-ng",
    "ncurses",
    "openssl",
    "ucrt",
    "vc",
}
_EXPORTED = re.compile(r"(?:\S+::)?([\w.-]+)=[^=]+(=[^=\s]+)?")
_SELECTOR = re.compile(r"#\s*\[\s*(win|osx|not linux|unix and not linux)\w*\s*\]")
# Header of `conda list`, and of `conda list --export`.
LIST_HEADER = re.compile(
    r"^# (packages in environment at|This file may be used to create an environment)",
    re.MULTILINE,
)
EXPLICIT = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)
_NOT_PACKAGES = {
    "prefix": "it is a folder of the machine that wrote the file",
    "category": "it is conda-lock's name for this list",
}


def environment_statements(file: str, text: str, selection: object = None) -> list[Statement]:
    """An environment.yml, or what `conda env export` printed.

    Raises InvalidSpec with all that is of another form, each with its line.
    """
    document, lines = read_yaml(file, text)
    if not isinstance(document, Mapping) or not isinstance(document.get("dependencies"), list):
        raise InvalidSpec(
            f"{file} has no list `dependencies`, which an environment.yml has.",
            advice="`conda env export --from-history > environment.yml` writes one.",
        )
    mistakes: list[str] = []
    statements: list[Statement] = []
    source = text.splitlines()
    is_export = _is_export(document)
    for key, number in lines.keys([]):
        value = document[key]
        if key == "name" and value is not None:
            statements.append(_statement(file, number, f"name: {value}", "name", str(value)))
        elif key == "channels" and isinstance(value, list):
            for index, channel in enumerate(value):
                line = lines.line(["channels", index])
                statements.append(_statement(file, line, str(channel), "channel", str(channel)))
        elif key == "dependencies":
            for index, item in enumerate(value):
                path: tuple[str | int, ...] = ("dependencies", index)
                line = lines.line(path)
                if isinstance(item, Mapping):
                    statements += _section(file, item, path, lines, mistakes)
                elif not isinstance(item, str):
                    mistakes.append(f"{file}:{line}: `{item}` is no package; write it as text.")
                elif _SELECTOR.search(source[line - 1]):
                    reason = "its selector is for other systems than Linux"
                    statements.append(_ignored(file, line, item, reason))
                else:
                    statements.append(
                        _statement(file, line, item, "conda", item, exported=is_export)
                    )
        elif key == "platforms" and isinstance(value, list):
            for index, platform in enumerate(value):
                line = lines.line(["platforms", index])
                statements.append(_statement(file, line, str(platform), "platform", str(platform)))
        elif key == "variables" and isinstance(value, Mapping):
            for name, content in value.items():
                statements.append(
                    Statement(
                        file=file,
                        line=lines.line(["variables", name]),
                        text=f"{name}: {content}",
                        kind="unknown",
                        reason="spec.yml holds no variables",
                        next_step=f"provision run NAME -- env {name}={content} python train.py",
                    )
                )
        elif key in _NOT_PACKAGES:
            statements.append(_ignored(file, number, f"{key}: {value}", _NOT_PACKAGES[key]))
        elif value is not None:
            mistakes.append(_key_mistake(file, number, key, value))
    if mistakes:
        raise InvalidSpec("\n".join(mistakes))
    return statements


def _key_mistake(file: str, line: int, key: str, value: Any) -> str:
    form = {"name": "a text", "channels": "a list", "platforms": "a list", "variables": "a mapping"}
    if key in form:
        return f"{file}:{line}: `{key}:` is {form[key]}, not `{value}`."
    return f"{file}:{line}: `{key}` is no key of an environment.yml."


def _section(
    file: str,
    section: Mapping[str, Any],
    path: Sequence[str | int],
    lines: YamlLines,
    mistakes: list[str],
) -> Iterator[Statement]:
    """The requirements of `pip:`, and of sections for other tools."""
    for tool, items in section.items():
        line = lines.line([*path, tool])
        if tool != "pip":
            yield Statement(
                file=file,
                line=line,
                text=f"{tool}: {items}",
                kind="unknown",
                reason=f"only `pip:` has packages of another tool; `{tool}:` is not known",
            )
        elif isinstance(items, str):
            mistakes.append(
                f"{file}:{line}: `pip:` holds a text, not a list. Write each requirement on a line "
                f"of its own, with `- ` before it: `- {items.split(' -')[0]}`."
            )
        elif items is not None and not isinstance(items, list):
            mistakes.append(f"{file}:{line}: `pip:` is a list of requirements, not `{items}`.")
        else:
            for index, item in enumerate(items or ()):
                number = lines.line([*path, "pip", index])
                if isinstance(item, str):
                    yield from statements_of(parse_lines(item), file=file, line=number)
                else:
                    mistakes.append(
                        f"{file}:{number}: `{item}` is no requirement; write it as text."
                    )


def _is_export(document: Mapping[str, Any]) -> bool:
    """Whether an environment.yml lists everything that is installed, requested or not."""
    packages = [item for item in document["dependencies"] if isinstance(item, str)]
    matches = [_EXPORTED.fullmatch(item) for item in packages]
    if not matches or not all(matches):
        return False
    has_builds = all(match and match[2] for match in matches)
    return (len(matches) > 1 and has_builds) or any(
        match[1] in _EVERYWHERE for match in matches if match
    )


def list_statements(file: str, text: str, selection: object = None) -> list[Statement]:
    """What `conda list --export` or `conda list` printed."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        comment = line.startswith("#")
        fields = line.split("=") if "=" in line else line.split()
        if comment or not line.strip():
            continue
        name, version, *rest = [*fields, "", ""][: max(len(fields), 2)]
        build = rest[0].strip() if rest else ""
        if build.startswith(("pypi", "<pip>")) or (len(rest) > 1 and rest[1] == "pypi"):
            requirement = f"{name}=={version}"
            statements += statements_of(parse_lines(requirement), file=file, line=number)
            continue
        value = "=".join(filter(None, (name.strip(), version.strip(), build)))
        statements.append(_statement(file, number, line.strip(), "conda", value, exported=True))
    return statements


def explicit_statements(file: str, text: str, selection: object = None) -> list[Statement]:
    """A list of addresses, as `conda list --explicit` and conda-lock write it."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", "@")):
            continue
        value = _package_of_archive(line)
        if value:
            statements.append(_statement(file, number, line, "conda", value, exported=True))
        else:
            statements.append(
                Statement(
                    file=file,
                    line=number,
                    text=line,
                    kind="unknown",
                    reason="it is not the address of a conda package",
                )
            )
    return statements


def _package_of_archive(address: str) -> str:
    """`name=version=build` of the address of a conda package; empty for any other address."""
    filename = url_filename(address)
    stem = archive_stem(filename)
    parts = stem.rsplit("-", 2)
    return "=".join(parts) if stem != filename and len(parts) == 3 else ""


def lock_statements(file: str, text: str, selection: object = None) -> list[Statement]:
    """A conda-lock.yml: the packages of one platform."""
    document, lines = read_yaml(file, text)
    packages = document.get("package") if isinstance(document, Mapping) else None
    if not isinstance(packages, list):
        raise InvalidSpec(f"{file} has no list `package`, which a conda-lock.yml has.")
    statements = []
    for index, package in enumerate(packages):
        number = lines.line(["package", index])
        if not isinstance(package, Mapping) or not package.get("name"):
            raise InvalidSpec(f"{file}:{number}: a package has no name.")
        name, version = package["name"], package.get("version")
        written = f"{name} {version} ({package.get('platform')})"
        if package.get("platform") != PLATFORM:
            statements.append(_ignored(file, number, written, f"it is not for {PLATFORM}"))
        elif package.get("manager") == "pip":
            url = str(package.get("url") or "")
            is_git = url.startswith("git+")
            requirement = f"{name} @ {url}" if is_git else f"{name}=={version}"
            statements += statements_of(parse_lines(requirement), file=file, line=number)
        else:
            value = _package_of_archive(str(package.get("url"))) or f"{name}={version}"
            statements.append(_statement(file, number, written, "conda", value, exported=True))
    return statements


def read_yaml(file: str, text: str) -> tuple[Any, YamlLines]:
    """The document in a text and its lines. Raises InvalidSpec for what is not YAML."""
    try:
        return parse_yaml(text), YamlLines(compose_yaml(text))
    except YamlError as error:
        location = file if error.line is None else f"{file}:{error.line}"
        raise InvalidSpec(
            f"{location}: this is not YAML: {error.problem}.", advice="Correct the file."
        ) from error


def _statement(
    file: str, line: int, text: str, kind: Kind, value: str, *, exported: bool = False
) -> Statement:
    return Statement(file=file, line=line, text=text, kind=kind, value=value, exported=exported)


def _ignored(file: str, line: int, text: str, reason: str) -> Statement:
    return Statement(file=file, line=line, text=text, kind="ignored", reason=reason)
