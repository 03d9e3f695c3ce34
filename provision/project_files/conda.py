"""conda's files -> statements: environment.yml, what `conda env export` and `conda list` print, lists
of addresses (`@EXPLICIT`), and conda-lock.yml."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.package_names import archive_stem, url_filename
from provision.core.platforms import PLATFORM
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Kind, Statement
from provision.core.yaml_text import YamlError, YamlLines, compose_yaml, parse_yaml
from provision.project_files.rules import table

# Of a key or a list item.
Path = Sequence[str | int]
_EXPORTED = re.compile(r"(?:\S+::)?([\w.-]+)=[^=]+(=[^=\s]+)?")
_SELECTOR = re.compile(r"#\s*\[\s*(win|osx|not linux|unix and not linux)\w*\s*\]")
# Header of `conda list`, and of `conda list --export`.
LIST_HEADER = re.compile(
    r"^# (packages in environment at|This file may be used to create an environment)",
    re.MULTILINE,
)
EXPLICIT = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)


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
    environment = _Environment(file, lines)
    statements = list(environment.statements(document, text.splitlines()))
    if environment.mistakes:
        raise InvalidSpec("\n".join(environment.mistakes))
    return statements


class _Environment:
    """One environment.yml. mistakes: what is of another form than conda's."""

    def __init__(self, file: str, lines: YamlLines) -> None:
        self.file = file
        self.lines = lines
        self.mistakes: list[str] = []

    def state(self, path: Path, kind: Kind, text: str) -> Statement:
        line = self.lines.line(path)
        return Statement(file=self.file, line=line, text=text, kind=kind, value=text)

    def mistake(self, path: Path, problem: str) -> None:
        self.mistakes.append(f"{self.file}:{self.lines.line(path)}: {problem}")

    def statements(self, document: Mapping[str, Any], source: Sequence[str]) -> Iterator[Statement]:
        rules = table("environment")
        for key, value in document.items():
            if key == "dependencies":
                is_export = _is_export(document)
                for index, item in enumerate(value):
                    for statement in self._dependency((key, index), item, source):
                        is_listed = is_export and statement.kind == "conda"
                        yield replace(statement, exported=is_listed)
            elif key in rules["lists"] and isinstance(value, list):
                for index, item in enumerate(value):
                    yield self.state((key, index), rules["lists"][key], str(item))
            elif key == "variables" and isinstance(value, Mapping):
                for name, content in value.items():
                    yield self.state((key, name), "unknown", f"{name}: {content}").because(
                        "spec.yml holds no variables",
                        f"provision run NAME -- env {shlex.quote(f'{name}={content}')} python train.py",
                    )
            elif key in rules["ignored"]:
                statement = self.state((key,), "ignored", f"{key}: {value}")
                yield statement.because(rules["ignored"][key])
            elif key == "name" and value is not None:
                yield replace(self.state((key,), "name", f"name: {value}"), value=str(value))
            elif key in rules["forms"] and value is not None:
                self.mistake((key,), f"`{key}:` is {rules['forms'][key]}, not `{value}`.")
            elif value is not None:
                self.mistake((key,), f"`{key}` is not a key of environment.yml.")

    def _dependency(self, path: Path, item: Any, source: Sequence[str]) -> Iterator[Statement]:
        """A package, the requirements of `pip:`, or a section for another tool."""
        if isinstance(item, str):
            statement = self.state(path, "conda", item)
            if _SELECTOR.search(source[self.lines.line(path) - 1]):
                reason = "its selector is for other systems than Linux"
                statement = statement.because(reason, kind="ignored")
            yield statement
        elif not isinstance(item, Mapping):
            self.mistake(path, f"`{item}` is not a package; write it as text.")
        for tool, items in item.items() if isinstance(item, Mapping) else ():
            section = (*path, tool)
            if tool != "pip":
                reason = f"only `pip:` has packages of another tool; `{tool}:` is not known"
                yield self.state(section, "unknown", f"{tool}: {items}").because(reason)
            elif isinstance(items, str):
                self.mistake(
                    section,
                    "`pip:` holds a text, not a list. Write each requirement on a line of its own, "
                    f"with `- ` before it: `- {items.split(' -')[0]}`.",
                )
            elif items is not None and not isinstance(items, list):
                self.mistake(section, f"`pip:` is a list of requirements, not `{items}`.")
            else:
                for index, text in enumerate(items or ()):
                    line = self.lines.line((*section, index))
                    if isinstance(text, str):
                        yield from parse_lines(text, self.file, line)
                    else:
                        problem = f"`{text}` is not a requirement; write it as text."
                        self.mistake((*section, index), problem)


def _is_export(document: Mapping[str, Any]) -> bool:
    """Whether an environment.yml lists everything that is installed, requested or not."""
    packages = [item for item in document["dependencies"] if isinstance(item, str)]
    matches = [match for item in packages if (match := _EXPORTED.fullmatch(item))]
    if len(matches) < len(packages):
        return False
    has_builds = len(matches) > 1 and all(match[2] for match in matches)
    return has_builds or any(match[1] in table("everywhere") for match in matches)


def list_statements(file: str, text: str, selection: object = None) -> list[Statement]:
    """What `conda list --export` or `conda list` printed."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = re.split(r"[=\s]+", line.strip())
        if line.startswith("#") or not line.strip():
            continue
        name, version, build, channel, *_ = [*fields, "", "", "", ""]
        if build.startswith(("pypi", "<pip>")) or channel == "pypi":
            statements += _wheel(file, number, f"{name}=={version}")
        else:
            value = "=".join(filter(None, (name, version, build)))
            statements.append(_exported(file, number, line.strip(), value))
    return statements


def explicit_statements(file: str, text: str, selection: object = None) -> list[Statement]:
    """A list of addresses, as `conda list --explicit` and conda-lock write it."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith(("#", "@")):
            value = _package_of_archive(line)
            statement = _exported(file, number, line, value)
            if not value:
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
        name, version, url = package["name"], package.get("version"), str(package.get("url"))
        written = f"{name} {version} ({package.get('platform')})"
        value = _package_of_archive(url) or f"{name}={version}"
        if package.get("platform") != PLATFORM:
            reason = f"it is not for {PLATFORM}"
            statement = _exported(file, number, written, value)
            statements.append(statement.because(reason, kind="ignored"))
        elif package.get("manager") == "pip":
            requirement = f"{name} @ {url}" if url.startswith("git+") else f"{name}=={version}"
            statements += _wheel(file, number, requirement)
        else:
            statements.append(_exported(file, number, written, value))
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


def _exported(file: str, line: int, text: str, value: str) -> Statement:
    """A conda package of a list of everything that is installed."""
    return Statement(file=file, line=line, text=text, kind="conda", value=value, exported=True)


def _wheel(file: str, line: int, requirement: str) -> list[Statement]:
    return parse_lines(requirement, file, line)
