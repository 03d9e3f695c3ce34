"""Records of what a command found, with all files and folders on which that depends: while none of
them has changed, the next such command needs to find nothing (`cli/start.py`, `cli/completion.py`).

Who reads one imports nothing else.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys
from binascii import crc32

# `typing` itself would take half of the time that Python takes to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from provision.core.paths import Folders

RUNS = "runs"  # in the cache
START = dict(os.environ)  # as it was before anything changed it
# Of these, and of all whose name begins so, depends where an environment is.
VARIABLES = ("PROVISION_", "XDG_", "HOME", "USER", "LOGNAME", "LNAME", "TMPDIR", "UV_CACHE_DIR")
# A file that was written a moment ago may be written again without a sign of it in its times.
SETTLED_NS = 2_000_000_000

Identity = tuple[int, ...]


def key_of(name: str) -> tuple[Any, ...]:
    """What a record is of, besides files."""
    variables = sorted(pair for pair in START.items() if pair[0].startswith(VARIABLES))
    return (sys.version, os.getuid(), os.getcwd(), name, *variables)  # noqa: PTH109


def record_file(key: tuple[Any, ...]) -> str:
    """The file of a record, wherever settings put the cache: it is read before they are. Keys may
    share one: it holds its key."""
    cache = START.get("PROVISION_CACHE")
    if not cache:
        cache = START.get("XDG_CACHE_HOME") or f"{START.get('HOME', '')}/.cache"
        cache += "/provision"
    return f"{cache}/{RUNS}/{crc32(marshal.dumps(key, 2)):08x}"


def identity(path: str, is_listed: bool) -> Identity | None:
    """What changes if a file does, or, of a folder, if another takes its place; is_listed: or if
    entries come and go. None if there is nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    values = (status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid)
    if stat.S_ISDIR(status.st_mode) and not is_listed:
        return values
    return (*values, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_record(name: str) -> Any:
    """The result in a record (of a run: argv, PATH, variables and dropped variables); None if there
    is none that is true, and this user's own."""
    try:
        key = key_of(name)
        with open(record_file(key), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None
            recorded_key, dependencies, result = marshal.loads(file.read())
    except (OSError, ValueError, EOFError, TypeError):
        return None
    is_true = recorded_key == key and all(
        identity(path, is_listed) == recorded for path, is_listed, recorded in dependencies
    )
    return result if is_true else None


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
        result: What `read_record` returns.
    """
    import time
    from pathlib import Path

    from provision.core.atomic import atomic_write
    from provision.core.paths import make_private_directory
    from provision.core.project import PROJECTS

    try:
        dependencies = []
        all_files = (*_files_of_project(folders), *files)
        all_listed = (folders.data, folders.data / PROJECTS, *listed)
        for is_listed, paths in ((False, all_files), (True, all_listed)):
            for path in map(str, paths):
                current = identity(path, is_listed)
                dependencies.append((path, is_listed, current))
                if current and max(current[5:], default=0) > time.time_ns() - SETTLED_NS:
                    return
        key = key_of(name)
        file = Path(record_file(key))
        make_private_directory(file.parent)
        atomic_write(file, marshal.dumps((key, dependencies, result)))
    except OSError:
        return


def _files_of_project(folders: Folders) -> list[Path]:
    """What decides which project this is, and where its products are. Raises OSError where it
    depends on more."""
    from pathlib import Path

    from provision.core import settings
    from provision.core.prefix_registry import LOCATIONS
    from provision.core.project import ENVS, FILE, PYPROJECT, RECORD

    paths = [Path(__file__), *settings.possible_files()]
    paths.append(settings.folder_settings().get("tmp", folders.data))
    # How the project is found (core/project.py).
    for folder in (Path.cwd(), *Path.cwd().parents):
        paths += [folder / name for name in (FILE, PYPROJECT, ENVS, ".git")]
        if folders.envs.is_relative_to(folder):
            break
        if (folder / FILE).exists() or (folder / ENVS).exists():
            raise FileExistsError(folder)
    # What belongs to it (workflow/project.py).
    return [*paths, folders.project_data / RECORD, folders.project_data / LOCATIONS]
