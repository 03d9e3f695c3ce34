"""Whose products the data folder has: a project that moved keeps its own, and what an earlier
provision kept for all projects goes to the one that it was made of.

Nothing is moved of a prefix, whose scripts name its path: it is recorded. Everything else is renamed,
so that a killed process leaves each thing in one of two folders, and the next one goes on.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from provision.core import prefix_registry, settings
from provision.core.errors import IntegrityError, ToolMissing
from provision.core.paths import Folders, make_private_directory
from provision.core.project import described_names, recorded_projects
from provision.core.similar_names import did_you_mean
from provision.core.types import Prefix
from provision.environment import marker
from provision.workflow.trust import require_trusted_prefix
from provision_runtime.facts import freshness

# Of an environment, below the data folder. `.{}.engine.json`: see image/engine_record.py.
RENAMED = (
    "passports/{}",
    "smoke/{}",
    "packed/{}",
    "packs/{}",
    "changes/{}.json",
    "images/.{}.engine.json",
    "images/{}",
)

# Of a data folder into which this user may not write.
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)
MARKER_HEAD = 4096  # characters of a prefix's marker, which hold the folder of its environment


def settle(folders: Folders) -> tuple[Folders, list[str]]:
    """The folders with what belongs to their project in its own folder, and lines that say what was
    taken over. Does nothing where this user may not write."""
    notes: list[str] = []
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
        names = sorted(_unsorted_names(folders)) if folders.project != Path() else []
        for name in names:
            _take_over(folders, name)
        if names:
            notes.append(
                f"{', '.join(names)}: kept by an earlier provision for all projects, from now on "
                f"for this one, in {folders.project_data}"
            )
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


def _unsorted_names(folders: Folders) -> Iterator[str]:
    """The environments of this project of which an earlier provision keeps something."""
    folders_of_all = {Path(pattern).parts[0] for pattern in ("prefixes/{}", *RENAMED)}
    if not any(
        (folders.data / name).exists() for name in (*folders_of_all, prefix_registry.LOCATIONS)
    ):
        return
    before = prefix_registry.unsorted(folders)
    installed = prefix_registry.list_prefixes(before)
    for name, path in installed.items():
        if _belongs_here(folders, name, path):
            yield name
    # An environment may have other products alone.
    elsewhere = {path.name for path in before.prefixes.glob("*")} | set(installed)
    for folder in folders.envs.glob("*"):
        if folder.name not in elsewhere and any(_renames(folders, folder.name)):
            yield folder.name


def _belongs_here(folders: Folders, name: str, path: Path) -> bool:
    """Whether a prefix was made of this project's environment of that name."""
    described = folders.envs / name
    try:
        with (path / marker.MARKER).open(encoding="utf-8") as file:
            # To read all of a large environment's takes a millisecond.
            if json.dumps(str(described)) in file.read(MARKER_HEAD):
                return True
    except (OSError, ValueError):
        return False
    present = marker.read(path) if described.is_dir() else None
    if present is None or present.name != name:
        return False
    is_of_same_lock = _has_lock_of(present, described)
    if present.pack:  # its folder is that of the nodes' store, and `provision join` recorded it
        return is_of_same_lock or settings.folder_settings(os.environ).get("envs") == folders.envs
    if os.path.realpath(present.folder) == os.path.realpath(described):
        return True
    return is_of_same_lock and not Path(present.folder).exists()


def _renames(folders: Folders, name: str) -> Iterator[tuple[Path, Path]]:
    for pattern in RENAMED:
        source = folders.data / pattern.format(name)
        target = folders.project_data / pattern.format(name)
        if os.path.lexists(source) and not os.path.lexists(target):
            yield source, target


def _take_over(folders: Folders, name: str) -> None:
    """The prefix comes last: while it is not recorded, the next process goes on here."""
    before = prefix_registry.unsorted(folders)
    with prefix_registry.projects_lock(folders):
        prefix_registry.record_project(folders)
        for source, target in _renames(folders, name):
            make_private_directory(target.parent)
            source.rename(target)
            with suppress(OSError):
                source.parent.rmdir()  # it was the last
        for path in prefix_registry.prefix_paths(before, name):
            if path.is_dir():
                prefix_registry.record_prefix(folders, name, path)
        prefix_registry.forget_prefix(before, name)


def owners(folders: Folders, name: str) -> list[Path]:
    """The folders of environments of all projects in which an environment of that name is
    installed."""
    found = set()
    for project in prefix_registry.all_projects(folders):
        path = prefix_registry.list_prefixes(project).get(name)
        present = marker.read(path) if path else None
        if present is not None:
            is_unsorted = project.project == Path() and not present.pack
            found.add(Path(present.folder).parent if is_unsorted else project.envs)
    return sorted(found)


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
