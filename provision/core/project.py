"""The project of a folder: where its environments are, which is its default, and where this user's
data folder keeps what was made of them.

A project is known by the folder of its environments. Two projects, or two worktrees of one, may each
have an environment of the same name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Any, TypedDict, cast

from provision.core.errors import InvalidSpec
from provision.core.schema import schema_error
from provision.core.toml_text import parse_toml

ENVS = "envs"
FILE, PYPROJECT, TABLE = "provision.toml", "pyproject.toml", "provision"
# Below the data folder: a folder for each project, with the path of its environments in a file.
PROJECTS, RECORD = "projects", "project"
LAB_CLONE = "repository"  # where `provision join` clones a lab, in a folder with its name
TITLE_LENGTH = 24


class ProjectSettings(TypedDict, total=False):
    """project.schema.json."""

    default: str
    envs: str


def read_settings(folder: Path) -> tuple[Path, ProjectSettings] | None:
    """The provision.toml of a folder, else its pyproject.toml, and what it says. Raises
    InvalidSpec."""
    for name in (FILE, PYPROJECT):
        path = folder / name
        if not os.access(path, os.R_OK) or (name == PYPROJECT and TABLE not in _text(path)):
            continue
        try:
            content: Any = parse_toml(_text(path))
        except ValueError as error:
            raise InvalidSpec(f"{path} is not TOML: {error}.", advice="Correct it.") from error
        if name == PYPROJECT:
            content = content.get("tool", {}).get(TABLE)
        if content is None:
            continue
        problem = schema_error(content, "project")
        if problem is not None:
            raise InvalidSpec(
                f"{path}: {problem}.", advice='Its keys: default = "NAME", and envs = "FOLDER".'
            )
        return path, cast(ProjectSettings, content)
    return None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def described_names(envs: Path) -> list[str]:
    """The environments in a folder; the virtual environments of others are none. Raises OSError for a
    path that the system does not take."""
    try:
        names = [path.name for path in envs.iterdir()]
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        return []
    files = ("spec.yml", "conda-lock.yml")
    return sorted(name for name in names if any(os.access(envs / name / f, os.F_OK) for f in files))


def find_envs(start: Path) -> Path | None:
    """The folder of environments of the project that a folder is in; None if it is in none. A git
    repository is not part of a project above it.

    A folder above counts only if it belongs to this user, to root, or to whom `start` belongs: in
    /tmp, say, anybody can make one.
    """
    owners = {0, os.getuid(), start.stat().st_uid}
    for folder in (start, *start.parents):
        project_file = read_settings(folder)
        mark, settings = project_file or (folder / ENVS, ProjectSettings())
        envs = folder / settings.get("envs", ENVS)
        if folder == start and (project_file or envs.exists()):
            return envs
        if (project_file or described_names(envs)) and mark.stat().st_uid in owners:
            return envs
        if os.path.lexists(folder / ".git"):
            return None
    return None


def settings_of(envs: Path) -> tuple[Path, ProjectSettings] | None:
    """The settings of the project with these environments, and their file. Raises InvalidSpec."""
    for folder in envs.parents:
        project_file = read_settings(folder)
        if project_file is not None:
            return project_file if folder / project_file[1].get("envs", ENVS) == envs else None
    return None


def project_root(envs: Path) -> Path:
    """The folder of a project, as people name it."""
    return envs.parent if envs.name == ENVS else envs


def project_title(envs: Path) -> str:
    """A project's name in a title."""
    root = project_root(envs)
    return root.parent.name if root.name == LAB_CLONE else root.name


def recorded_projects(data: Path) -> dict[Path, Path]:
    """The folders of environments of all projects that have products, by their folder below `data`."""
    records = sorted((data / PROJECTS).glob(f"*/{RECORD}"))
    return {path.parent.relative_to(data): Path(_text(path)) for path in records}


def project_folder(data: Path, envs: Path) -> Path:
    """The folder of a project's products, below `data`: as recorded, else where they will be."""
    envs = Path(os.path.realpath(envs))
    title = re.sub(r"[^A-Za-z0-9._-]+", "-", project_title(envs))[:TITLE_LENGTH].strip("-.")
    key = hashlib.sha256(os.fsencode(envs)).hexdigest()[:8]
    folder = Path(PROJECTS, f"{title or 'root'}-{key}")
    record = data / folder / RECORD
    if record.exists() and _text(record) == str(envs):
        return folder
    for other, recorded_envs in recorded_projects(data).items():
        if recorded_envs == envs:
            return other
    # The products of a project that was here and moved away stay where they are.
    return folder.with_name(f"{folder.name}-new") if record.exists() else folder
