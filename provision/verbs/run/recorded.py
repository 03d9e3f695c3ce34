"""What the next `provision run` of an environment needs, so that it becomes its command at once
(`cli/start.py`), and all files and folders on which that depends.

Only a run that had nothing to say is recorded, of an environment in its usual folder.
"""

from __future__ import annotations

import marshal
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from provision.cli import start
from provision.core import settings
from provision.core.atomic import atomic_write
from provision.core.paths import LOCK, SPEC, Folders, make_private_directory
from provision.core.prefix_registry import LOCATIONS
from provision.core.project import ENVS, FILE, PROJECTS, PYPROJECT, RECORD
from provision.core.types import Prefix
from provision.environment import activation, marker
from provision.environment.state import RUNTIME

# A file that was written a moment ago may be written again without a sign of it in its times.
SETTLED_NS = 2_000_000_000


def record_run(
    folders: Folders, prefix: Prefix, command: Sequence[str], variables: dict[str, str]
) -> None:
    """Record a run. variables: the whole environment of its command. What cannot be written is not
    needed."""
    bin_folder, _, path = variables["PATH"].partition(":")
    if path != start.START.get("PATH") or not prefix.path.is_relative_to(folders.project_data):
        return
    argv = activation.run_argv(prefix, command)[: -len(command)]
    changed = dict(variables.items() - start.START.items() - {("PATH", variables["PATH"])})
    result = (argv, bin_folder, changed, list(activation.DROPPED_VARIABLES))
    with suppress(OSError):
        dependencies = []
        for kind, paths in enumerate((_deciding_files(folders, prefix), _listed(folders, prefix))):
            for path in map(str, paths):
                identity = start.identity(path, bool(kind))
                dependencies.append((path, bool(kind), identity))
                if identity and max(identity[5:], default=0) > time.time_ns() - SETTLED_NS:
                    return
        key = start.key_of(prefix.name)
        file = Path(start.record_file(key))
        make_private_directory(file.parent)
        atomic_write(file, marshal.dumps((key, dependencies, result)))


def _deciding_files(folders: Folders, prefix: Prefix) -> list[Path]:
    """Files, and folders of which only the existence counts. Raises OSError where it depends on more."""
    paths = [Path(start.__file__), *settings.possible_files(os.environ)]
    paths.append(settings.folder_settings(os.environ).get("tmp", folders.data))
    # How the project is found (core/project.py).
    for folder in (Path.cwd(), *Path.cwd().parents):
        paths += [folder / name for name in (FILE, PYPROJECT, ENVS, ".git")]
        if folders.envs.is_relative_to(folder):
            break
        if (folder / FILE).exists() or (folder / ENVS).exists():
            raise FileExistsError(folder)
    # What belongs to it (workflow/project.py), and what its environment is to be.
    paths += [folders.project_data / RECORD, folders.project_data / LOCATIONS]
    described = folders.envs / prefix.name
    return [*paths, described / LOCK, described / SPEC, prefix.path / marker.MARKER, prefix.python]


def _listed(folders: Folders, prefix: Prefix) -> Iterator[Path]:
    """Folders whose entries count, and the runtime package here and in the prefix."""
    yield from (folders.data, folders.data / "prefixes", folders.data / PROJECTS)
    yield from (prefix.path / "conda-meta", prefix.path / "etc" / "conda" / "activate.d")
    yield from prefix.path.glob("lib/python3*/site-packages")
    yield from prefix.path.glob("lib/python3*/site-packages/provision_runtime-*/RECORD")
    for parent, _, names in os.walk(RUNTIME[0]):
        if not parent.endswith("__pycache__"):
            yield from (Path(parent, name) for name in (".", *names))
