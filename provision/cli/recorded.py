"""Records of what a command found, with all files and folders on which that depends: while none of
them has changed, the next such command needs to find nothing (`cli/start.py`)."""

from __future__ import annotations

import marshal
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from provision.cli import start
from provision.core import settings
from provision.core.atomic import atomic_write
from provision.core.paths import Folders, make_private_directory
from provision.core.prefix_registry import LOCATIONS
from provision.core.project import ENVS, FILE, PROJECTS, PYPROJECT, RECORD

# A file that was written a moment ago may be written again without a sign of it in its times.
SETTLED_NS = 2_000_000_000


def write_record(
    folders: Folders, name: str, files: Iterable[Path], listed: Iterable[Path], result: Any
) -> None:
    """Record a result. What cannot be recorded is not needed.

    Args:
        folders: Those of the project in which it was found.
        name: Of the record.
        files: What it depends on, besides the project: files, and folders of which only the
            existence counts.
        listed: The same, of folders whose entries count.
        result: What `start.read_record` returns.
    """
    with suppress(OSError):
        dependencies = []
        all_files = (*_files_of_project(folders), *files)
        all_listed = (folders.data, folders.data / "prefixes", folders.data / PROJECTS, *listed)
        for is_listed, paths in ((False, all_files), (True, all_listed)):
            for path in map(str, paths):
                identity = start.identity(path, is_listed)
                dependencies.append((path, is_listed, identity))
                if identity and max(identity[5:], default=0) > time.time_ns() - SETTLED_NS:
                    return
        key = start.key_of(name)
        file = Path(start.record_file(key))
        make_private_directory(file.parent)
        atomic_write(file, marshal.dumps((key, dependencies, result)))


def _files_of_project(folders: Folders) -> list[Path]:
    """What decides which project this is, and where its products are. Raises OSError where it
    depends on more."""
    paths = [Path(start.__file__), *settings.possible_files(os.environ)]
    paths.append(settings.folder_settings(os.environ).get("tmp", folders.data))
    # How the project is found (core/project.py).
    for folder in (Path.cwd(), *Path.cwd().parents):
        paths += [folder / name for name in (FILE, PYPROJECT, ENVS, ".git")]
        if folders.envs.is_relative_to(folder):
            break
        if (folder / FILE).exists() or (folder / ENVS).exists():
            raise FileExistsError(folder)
    # What belongs to it (workflow/project.py).
    return [*paths, folders.project_data / RECORD, folders.project_data / LOCATIONS]
