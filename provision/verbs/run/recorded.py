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
    argv = activation.run_argv(prefix, command)
    bin_folder, _, path = variables["PATH"].partition(":")
    if path != start.START.get("PATH") or not prefix.path.is_relative_to(folders.project_data):
        return
    changed = {
        name: value
        for name, value in variables.items()
        if name != "PATH" and start.START.get(name) != value
    }
    result = (argv[: -len(command)], bin_folder, changed, list(activation.DROPPED_VARIABLES))
    with suppress(OSError):
        dependencies = []
        for dependency, is_listed in _dependencies(folders, prefix):
            identity = start.identity(str(dependency), is_listed)
            dependencies.append((str(dependency), is_listed, identity))
            if identity is not None and max(identity[5:], default=0) > time.time_ns() - SETTLED_NS:
                return
        key = start.key_of(prefix.name)
        file = Path(start.record_file(key))
        make_private_directory(file.parent)
        atomic_write(file, marshal.dumps((key, dependencies, result)))


def _dependencies(folders: Folders, prefix: Prefix) -> Iterator[tuple[Path, bool]]:
    """Each with whether its entries count too. Raises OSError where it depends on more."""
    yield Path(start.__file__), False
    for file in settings.possible_files(os.environ):
        yield file, False
    yield settings.folder_settings(os.environ).get("tmp", folders.data), False
    # How the project is found (core/project.py).
    for folder in (Path.cwd(), *Path.cwd().parents):
        for name in (FILE, PYPROJECT, ENVS, ".git"):
            yield folder / name, False
        if folders.envs.is_relative_to(folder):
            break
        if (folder / FILE).exists() or (folder / ENVS).exists():
            raise FileExistsError(folder)
    # What belongs to it (workflow/project.py).
    yield folders.data, True
    yield folders.data / "prefixes", True
    yield folders.data / PROJECTS, True
    for name in (RECORD, LOCATIONS):
        yield folders.project_data / name, False
    # Whether the environment is as its lock and spec.yml say (environment/state.py).
    for name in (LOCK, SPEC):
        yield folders.envs / prefix.name / name, False
    yield prefix.path / marker.MARKER, False
    yield prefix.python, False
    yield prefix.path / "conda-meta", True
    yield prefix.path / "etc" / "conda" / "activate.d", True
    for site_packages in prefix.path.glob("lib/python3*/site-packages"):
        yield site_packages, True
        yield from ((path, False) for path in site_packages.glob("provision_runtime-*/RECORD"))
    for parent, _, names in os.walk(RUNTIME[0]):
        yield from (
            (Path(parent, name), True) for name in (".", *names) if "__pycache__" not in parent
        )
