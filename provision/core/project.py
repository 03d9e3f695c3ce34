"""The project of a folder: where its environments are, which is its default, and where this user's
data folder keeps what was made of them.

A project is known by the folder of its environments. Two projects, or two worktrees of one, may each
have an environment of the same name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.records import parse_record

ENVS = "envs"
FILE, PYPROJECT, TABLE = "provision.toml", "pyproject.toml", "provision"
KEYS = ("default", "envs")
# Below the data folder: a folder for each project, with a record of whose it is.
PROJECTS, RECORD = "projects", "project.json"
TITLE_LENGTH = 24
# Where `provision join` clones a lab: labs/NAME-HASH/repository.
LABS, LAB_CLONE = "labs", "repository"


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """What provision.toml or pyproject.toml says. default: the environment that is meant where a
    command names none. envs: the folder of the environments, from the file's."""

    file: Path
    default: str = ""
    envs: str = ENVS


@dataclass(frozen=True, kw_only=True)
class ProjectRecord:
    """envs: the folder of the project's environments."""

    envs: str


def read_settings(folder: Path) -> ProjectSettings | None:
    """The settings in a folder's provision.toml, else in its pyproject.toml. Raises InvalidSpec."""
    for name in (FILE, PYPROJECT):
        path = folder / name
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if name == FILE or TABLE.encode() in text:
            content = _parse(path, text)
            table = content if name == FILE else content.get("tool", {}).get(TABLE)
            if table is not None:
                return _settings(path, table)
    return None


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        return tomllib.loads(text.decode())
    except ValueError as error:
        raise InvalidSpec(f"{path} is not TOML: {error}.", advice="Correct it.") from error


def _settings(path: Path, table: object) -> ProjectSettings:
    where = path if path.name == FILE else f"{path}, [tool.{TABLE}]"
    if not isinstance(table, dict):
        raise InvalidSpec(f"{where}: it is not a table.", advice=f'Write `default = "dev"` in it.')
    for key, value in table.items():
        if key not in KEYS:
            raise InvalidSpec(
                f"{where}: there is no key `{key}`.", advice=f"Its keys: {', '.join(KEYS)}."
            )
        if not isinstance(value, str) or not value:
            raise InvalidSpec(
                f"{where}: `{key}` is not a text.", advice=f'Write `{key} = "..."`, for instance.'
            )
    settings = ProjectSettings(file=path, **table)
    if Path(settings.envs).is_absolute() or ".." in Path(settings.envs).parts:
        raise InvalidSpec(
            f"{where}: `envs` names a folder that is not below {path.parent}.",
            advice=f'Write `envs = "{ENVS}"`, for instance; --envs and PROVISION_ENVS name others.',
        )
    return settings


def has_environments(envs: Path) -> bool:
    """Whether a folder holds environments: the virtual environments of others are none."""
    return any(any(envs.glob(f"*/{name}")) for name in ("spec.yml", "conda-lock.yml"))


def find_envs(start: Path) -> Path | None:
    """The folder of environments of the project that a folder is in; None if it is in none.

    A folder above counts only if it belongs to this user, to root, or to whom `start` belongs: in
    /tmp, say, anybody can make one.
    """
    owners = {0, os.getuid(), start.stat().st_uid}
    for folder in (start, *start.parents):
        settings = read_settings(folder)
        envs = folder / (settings.envs if settings else ENVS)
        mark = settings.file if settings else envs
        if not (settings or has_environments(envs) or (folder == start and envs.exists())):
            continue
        if folder == start or mark.stat().st_uid in owners:
            return envs
    return None


def settings_of(envs: Path) -> ProjectSettings | None:
    """The settings of the project with these environments. Raises InvalidSpec."""
    for folder in envs.parents:
        settings = read_settings(folder)
        if settings is not None:
            return settings if folder / settings.envs == envs else None
    return None


def project_root(envs: Path) -> Path:
    """The folder of a project, as people name it."""
    return envs.parent if envs.name == ENVS else envs


def project_title(envs: Path) -> str:
    """A project's name in a title: its folder's, or, of a lab that was joined, the lab's."""
    root = project_root(envs)
    lab = root.parent
    if root.name == LAB_CLONE and lab.parent.name == LABS:
        return lab.name.rpartition("-")[0]
    return root.name


def recorded_projects(data: Path) -> dict[Path, Path]:
    """The folders of environments of all projects that have products, by their folder below `data`."""
    recorded = {}
    for path in sorted((data / PROJECTS).glob(f"*/{RECORD}")):
        envs = read_record(path)
        if envs is not None:
            recorded[path.parent.relative_to(data)] = envs
    return recorded


def read_record(path: Path) -> Path | None:
    """The folder of environments that a project's record names."""
    try:
        return Path(parse_record(ProjectRecord, path.read_bytes()).envs)
    except (OSError, ValueError):
        return None


def project_folder(data: Path, envs: Path) -> Path:
    """The folder of a project's products, below `data`: as recorded, else where they will be.

    Empty, for the data folder itself, where an earlier provision kept the products of all projects
    and this user may not move them.
    """
    envs = Path(os.path.realpath(envs))
    title = re.sub(r"[^A-Za-z0-9._-]+", "-", project_title(envs))[:TITLE_LENGTH].strip("-.")
    key = hashlib.sha256(os.fsencode(envs)).hexdigest()[:8]
    folder = Path(PROJECTS, f"{title or 'root'}-{key}")
    if read_record(data / folder / RECORD) == envs:
        return folder
    recorded = recorded_projects(data)
    for other, recorded_envs in recorded.items():
        if recorded_envs == envs:
            return other
    if data.exists() and not os.access(data, os.W_OK):
        return Path()
    # The project that was here before moved away, and its products stay where they are.
    number = 2
    while folder in recorded:
        folder = Path(PROJECTS, f"{title}-{key}-{number}")
        number += 1
    return folder
