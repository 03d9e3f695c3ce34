"""Modulefiles of environments, for `module load NAME` (Lmod and Environment Modules read both Tcl).

A file for each environment, named by its hash, with paths that never change: what was loaded is
unloaded wholly after another environment became active. `.version` names the active one.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from . import store as stores
from .errors import NodeError
from .store import Store
from .store_access import require_safe_path
from .store_files import read_json, remove_file, write_json, write_text
from .store_lock import locked, release

if TYPE_CHECKING:
    from .results import Texts

MAGIC = "#%Module1.0\n"
MADE_BY = "# Made by provision ship --module; switched with the environment.\n"
VERSION_FILE = ".version"
# Environments of two names set the same variables, so unloading one would take those of the other:
# they are a family, of which Lmod and Environment Modules (5.1 and newer) load one. `PYTHONHOME` and `PYTHONPATH` lead Python out of the environment.
_MODULE = """\
proc ModulesHelp {{}} {{ puts stderr "{key}: an environment of provision, in {prefix}" }}
module-whatis "{key}: an environment of provision"
conflict {name}
if {{[info commands family] ne ""}} {{ family provision }}
setenv CONDA_PREFIX {prefix}
setenv PYTHONNOUSERSITE 1
unsetenv PYTHONHOME
unsetenv PYTHONPATH
prepend-path PATH {prefix}/bin
"""


def enable(path: str, name: str, folder: str, run: Texts) -> dict[str, object]:
    """Have the modulefiles of an environment written to a folder, now and at each activation.

    Raises NodeError (unsafe-store, not-ours, in-use).
    """
    store = Store(path, run)
    with locked(store, name, run):
        require_safe_path(store, folder)
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        require_safe_path(store, os.path.join(folder, name))
        write_json(_record(store, name), {"folder": folder})
        refresh_module(store, name)
    return release(path, name, run)


def refresh_module(store: Store, name: str) -> None:
    """Make the active environment the one that `module load NAME` loads, where that was enabled."""
    folder, key = _folder(store, name), stores.active_key(store, name)
    if folder is None or key is None:
        return
    prefix, version = store.environment(key), _version(key)
    # As one word of Tcl.
    token = re.sub(r"([^\w/.,:=@%+-])", r"\\\1", prefix)
    text = MAGIC + MADE_BY + _MODULE.format(key=key, name=name, prefix=token)
    for file, content in (
        (version, text),
        (VERSION_FILE, f'{MAGIC}{MADE_BY}set ModulesVersion "{version}"\n'),
    ):
        target = os.path.join(folder, file)
        if os.path.lexists(target) and not _is_ours(target):
            raise NodeError("not-ours", f"{target} is not a modulefile that provision made")
        write_text(target, os.path.join(folder, f".{file}.new"), content)


def remove_module(store: Store, key: str) -> None:
    """Remove the modulefile of an environment that is gone."""
    name = stores.name_of(key)
    folder = _folder(store, name)
    if folder is None:
        return
    files = [_version(key)]
    if stores.active_key(store, name) is None:
        files.append(VERSION_FILE)
    for file in files:
        target = os.path.join(folder, file)
        if _is_ours(target):
            remove_file(target)
    with contextlib.suppress(OSError):  # it is not empty
        os.rmdir(folder)
        remove_file(_record(store, name))


def _record(store: Store, name: str) -> str:
    return store.join("staging", f"{name}.module")


def _folder(store: Store, name: str) -> str | None:
    record = read_json(_record(store, name))
    return os.path.join(record["folder"], name) if record else None


def _version(key: str) -> str:
    return key[-stores.KEY_HASH_LENGTH :]


def _is_ours(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline() == MAGIC and file.readline() == MADE_BY
    except OSError:
        return False
