"""Whose products the data folder has: a project that moved keeps its own."""

from __future__ import annotations

import errno
import shlex
from dataclasses import replace
from pathlib import Path

from provision.core import prefix_registry
from provision.core.errors import IntegrityError, ToolMissing
from provision.core.paths import Folders
from provision.core.project import described_names, recorded_projects
from provision.core.similar_names import did_you_mean
from provision.core.types import Prefix
from provision.environment import marker
from provision.workflow.trust import require_trusted_prefix
from provision_runtime.facts import freshness

# Of a data folder into which this user may not write.
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


def settle(folders: Folders) -> tuple[Folders, list[str]]:
    """The folders of the project, also where it was moved; and a line that says so. Does nothing where
    this user may not write."""
    notes = []
    recorded = recorded_projects(folders.data)
    try:
        for project, envs in recorded.items() if folders.project not in recorded else ():
            candidate = replace(folders, project=project)
            is_of_same_lock = any(
                _has_lock_of(marker.read(path), candidate.envs / name)
                for name, path in prefix_registry.list_prefixes(candidate).items()
            )
            if not envs.exists() and is_of_same_lock:
                _move(candidate, envs)
                folders = candidate
                notes.append(f"this project was moved from {envs}: its environments stay valid")
                break
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
    return folders, notes


def _move(folders: Folders, before: Path) -> None:
    """Record that a project's environments are no longer in `before`."""
    with prefix_registry.projects_lock(folders):
        for name, path in prefix_registry.list_prefixes(folders).items():
            present = marker.read(path)
            if present is not None and present.folder == str(before / name):
                marker.write(path, replace(present, folder=str(folders.envs / name)))
        prefix_registry.record_project(folders)


def _has_lock_of(present: marker.Marker | None, folder: Path) -> bool:
    """Whether a prefix was installed from the lock that a folder has now."""
    return present is not None and present.lock_sha256 == freshness.lock_sha256(str(folder))


def owners(folders: Folders, name: str) -> list[Path]:
    """The folders of environments of all projects in which an environment of that name is
    installed."""
    projects = set()
    for project in prefix_registry.all_projects(folders):
        path = prefix_registry.list_prefixes(project).get(name)
        if path and marker.read(path) is not None:
            projects.add(project.envs)
    return sorted(projects)


def require_prefix(folders: Folders, name: str, path: Path | None = None) -> Prefix:
    """The installed prefix of an environment.

    Raises ToolMissing if there is none, IntegrityError if it has lost its interpreter, SystemRefused
    if another user could change it.
    """
    prefix = marker.find(name, prefix_registry.prefix_path(folders, name, path))
    if prefix is None:
        prefixes = sorted(prefix_registry.list_prefixes(folders))
        candidates = [*prefixes, *described_names(folders.envs)]
        advice = did_you_mean(name, candidates) or (
            f"`provision build {name}` makes it, in the folder that has envs/{name}. "
        )
        if (folders.envs / name).is_dir():
            advice = f"`provision env create {name}` installs it. "
        elsewhere = [envs for envs in owners(folders, name) if envs != folders.envs]
        if elsewhere:
            commands = " or ".join(f"--envs {shlex.quote(str(envs))}" for envs in elsewhere)
            advice += f"Another project has it: {commands} names that. "
        raise ToolMissing(
            f"Environment `{name}` is not installed on this machine.",
            advice=f"{advice}Installed: {', '.join(prefixes) or 'none'}.",
        )
    if not prefix.python.exists():
        raise IntegrityError(
            f"{prefix.path} has no bin/python.", advice=f"Run `provision env create {name}`."
        )
    require_trusted_prefix(folders, prefix.path)
    return prefix
