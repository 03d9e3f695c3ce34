"""What this user's data folder has of each project: its record, and its prefixes, those in the usual
folder and those that `--prefix` put elsewhere, which a file lists."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.core.atomic import atomic_write
from provision.core.file_locks import exclusive_lock
from provision.core.paths import Folders, make_private_directory
from provision.core.project import PROJECTS, RECORD, recorded_projects
from provision.core.records import parse_record

LOCATIONS = "elsewhere.json"
LOCK = "elsewhere.lock"


@contextmanager
def projects_lock(folders: Folders) -> Iterator[None]:
    """Only one process moves projects at a time."""
    make_private_directory(folders.data / PROJECTS)
    with exclusive_lock(folders.data / PROJECTS / ".lock"):
        yield


def record_project(folders: Folders) -> None:
    """Record whose products the project's folder has, so that they are found when it moves."""
    envs, recorded = Path(os.path.realpath(folders.envs)), recorded_projects(folders.data)
    if folders.project != Path() and recorded.get(folders.project) != envs:
        atomic_write(folders.project_data / RECORD, os.fsencode(envs))


def all_projects(folders: Folders) -> list[Folders]:
    """The folders of every project with products; of these, `folders` first."""
    projects = {folders.project: folders}
    for project, envs in recorded_projects(folders.data).items():
        projects.setdefault(project, replace(folders, project=project, envs=envs))
    return list(projects.values())


def prefix_path(folders: Folders, name: str, requested: Path | None = None) -> Path:
    """The path of an environment's prefix: as requested now, else where it was last made, else the
    usual place."""
    if requested:
        return requested.absolute()
    recorded = _read(folders).get(name)
    if recorded:
        return Path(recorded[-1])
    return folders.prefixes / name


def prefix_paths(folders: Folders, name: str) -> list[Path]:
    """Every path where a prefix of that name was made, the usual one included."""
    return [folders.prefixes / name, *map(Path, _read(folders).get(name, ()))]


def list_prefixes(folders: Folders) -> dict[str, Path]:
    """The path of every prefix, by name; the latest where a name has several."""
    prefixes = {}
    for path in sorted(folders.prefixes.glob("*")):
        if path.is_dir() and not path.name.startswith("."):
            prefixes[path.name] = path
    for name, recorded in _read(folders).items():
        prefixes[name] = Path(recorded[-1])
    return prefixes


def record_prefix(folders: Folders, name: str, path: Path) -> None:
    """Record where a prefix was made, unless it has always been in the usual place."""
    record_project(folders)
    recorded = _read(folders).get(name, ())
    if not recorded and path == folders.prefixes / name:
        return
    updated = (*(other for other in recorded if other != str(path)), str(path))
    if updated != recorded:
        _update(folders, name, updated)


def forget_prefix(folders: Folders, name: str) -> None:
    """Delete the record of where prefixes of this name were made."""
    if name in _read(folders):
        _update(folders, name, ())


def _update(folders: Folders, name: str, paths: tuple[str, ...]) -> None:
    make_private_directory(folders.project_data)
    with exclusive_lock(folders.project_data / LOCK):
        locations = _read(folders)
        locations.pop(name, None)
        if paths:
            locations[name] = paths
        atomic_write(folders.project_data / LOCATIONS, json.dumps(locations, indent=1) + "\n")


def _read(folders: Folders) -> dict[str, tuple[str, ...]]:
    """The recorded paths by name. A damaged file counts as empty: --prefix can restore its
    content."""
    kind: Any = Mapping[str, tuple[str, ...]]
    try:
        content = parse_record(kind, (folders.project_data / LOCATIONS).read_bytes())
    except (OSError, ValueError):
        return {}
    return {name: paths for name, paths in content.items() if paths}
