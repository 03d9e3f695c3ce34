"""Reading the files of a project: which reader a file has, and the files that it includes."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from provision.core.credentials import credential_problem, public_request
from provision.core.errors import InvalidSpec
from provision.core.requirement_files import is_installable, read_files
from provision.core.requirement_lines import parse_lines
from provision.core.statements import PipRequirement, Statement
from provision.core.yaml_text import YamlError, parse_yaml
from provision.project_files import (
    conda,
    install_text,
    pipfile,
    pixi,
    pylock,
    pyproject,
    python_version,
    setup_files,
    uv_lock,
)
from provision.project_files.requirements import (
    PIP_TABLE,
    shell_words,
    table_statements,
)
from provision.project_files.toml_file import Selection

Reader = Callable[[str, str, Selection], list[Statement]]
# Locks that do not say what was requested, and the files next to them that do.
_REQUEST_OF = {
    "poetry.lock": "pyproject.toml",
    "pdm.lock": "pyproject.toml",
    "Pipfile.lock": "Pipfile",
    "pixi.lock": "pixi.toml",
}
_LISTED = re.compile(r"[\w.-]+=[^=\s]+=[^=\s]+")
# The readers of files by the patterns of their names; the first that fits counts.
_READERS: dict[str, Reader] = {
    "pyproject.toml": pyproject.statements,
    "pixi.toml": pixi.statements,
    "Pipfile": pipfile.statements,
    "setup.cfg": setup_files.cfg_statements,
    "setup.py": setup_files.setup_py_statements,
    "uv.lock": uv_lock.statements,
    ".python-version": python_version.statements,
    ".tool-versions": python_version.statements,
    "pylock*.toml": pylock.statements,
    "*.toml": pyproject.statements,
    "*.py": pyproject.script_statements,
    "*.sh": install_text.statements,
    "*.def": install_text.statements,
    "Singularity": install_text.statements,
    "Containerfile": install_text.statements,
    "*[Dd]ockerfile*": install_text.statements,
    "*.md": install_text.readme_statements,
    "*.rst": install_text.readme_statements,
    "README*": install_text.readme_statements,
    "INSTALL*": install_text.readme_statements,
}


def read_file(path: Path, selection: Selection | None = None) -> list[Statement]:
    """What a file states, and the files that it includes. selection: the groups and extras that are
    taken of it.

    Raises InvalidSpec if it cannot be read, or is of no known kind.
    """
    chosen = selection or Selection()

    def read(file: Path, text: str) -> list[Statement]:
        return _reader(file, text)(_shown(file), text, chosen)

    return [_located(_without_credentials(item)) for item in read_files(path, read)]


def _without_credentials(statement: Statement) -> Statement:
    """The statement without credentials, and with what was taken out of it."""
    problem = credential_problem(statement.value) or credential_problem(statement.text)
    return replace(
        statement,
        text=public_request(statement.text),
        value=public_request(statement.value),
        credential=statement.credential or problem or "",
    )


def _pip_lines(file: str, text: str, selection: Selection) -> list[Statement]:
    return parse_lines(text, file)


def _reader(path: Path, text: str) -> Reader:
    if path.name in _REQUEST_OF:
        raise InvalidSpec(
            f"{_shown(path)} does not say what was requested: every package of every group is in it.",
            advice=f"provision import {_shown(path.with_name(_REQUEST_OF[path.name]))}",
        )
    if path.name == "runtime.txt" and text.startswith("python-"):
        return python_version.statements
    if pyproject.SCRIPT_METADATA.search(text):
        return pyproject.script_statements
    for pattern, reader in _READERS.items():
        if fnmatch.fnmatchcase(path.name, pattern):
            return reader
    if path.suffix in (".yml", ".yaml", ".json"):
        return _yaml_reader(path, text)
    if conda.EXPLICIT.search(text):
        return conda.explicit_statements
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    is_listed = bool(lines) and all(_LISTED.fullmatch(line.strip()) for line in lines)
    if conda.LIST_HEADER.search(text) or is_listed:
        return conda.list_statements
    return table_statements if PIP_TABLE.match(text) else _pip_lines


def _yaml_reader(path: Path, text: str) -> Reader:
    try:
        document = parse_yaml(text)
    except YamlError:
        return conda.environment_statements  # it says what is wrong
    keys = document if isinstance(document, dict) else {}
    if isinstance(keys.get("package"), list):
        return conda.lock_statements
    return conda.environment_statements


def _located(statement: Statement) -> Statement:
    """The statement with a path as spec.yml has it, if it requests one. What is not there is
    unknown."""
    requirement = statement.requirement
    if statement.kind == "find-links" and "://" not in statement.value:
        path = Path(statement.file).absolute().parent / Path(statement.value).expanduser()
        return replace(statement, value=f"file:{os.path.normpath(path)}")
    if statement.kind != "pip" or requirement is None or not requirement.is_path:
        return statement
    requirement = replace(requirement, source=requirement.source.removeprefix("file://"))
    if not is_installable(Path(requirement.source.partition("#")[0])):
        return replace(
            statement,
            kind="unknown",
            reason="there is no file and no project of that path here",
            next_step=f"provision add NAME {shell_words(requirement)}",
        )
    return replace(statement, value=str(requirement), requirement=requirement)


def _shown(path: Path) -> str:
    """A path as the user would name it from here."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def editable_requirement(requirement: PipRequirement) -> str:
    """The requirement of spec.yml for a project's folder, with its absolute path; empty for what is
    no editable, of which a wheel is built. The name is left out where no file states it."""
    if not requirement.editable:
        return ""
    path = requirement.source.removeprefix("file://").removeprefix("file:")
    name = project_name(Path(path))
    extras = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
    return f"{name}{extras} @ file:{path}" if name else f"file:{path}{extras}"


def project_name(folder: Path) -> str:
    """The name of the project in a folder, as its files state it; empty if they do not."""
    for file in ("pyproject.toml", "setup.cfg", "setup.py"):
        path = folder / file
        if path.is_file():
            try:
                statements = read_file(path)
            except InvalidSpec:
                continue
            for statement in statements:
                if statement.kind == "name":
                    return statement.value
    return ""


def printed_step(step: str, name: str) -> str:
    """A next step with the environment's name, and paths as seen from here."""
    here = str(Path.cwd())
    step = step.replace(f"{here}/", "./").replace(here, ".")
    return re.sub(r"(?<=^provision )(\S+ )NAME\b", rf"\g<1>{name}", step)
