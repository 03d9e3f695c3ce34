"""Where what is loaded came from: libraries of CUDA that are not this environment's, and modules of a home or of PYTHONPATH.

Owns the question of origin, for what is loaded at the time of asking. Judges nothing.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import libraries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

# What a folder of packages may hold without bringing any.
NO_PACKAGES = {"__pycache__", "README.txt"}


def collect() -> dict[str, Any]:
    return {
        "libraries": about_libraries(),
        "user_site": about_user_site(),
        "pythonpath": about_pythonpath(),
    }


def about_libraries() -> dict[str, Any]:
    """What is loaded and not this environment's, what could be, and the environment's own libraries that stand against the former."""
    files, packages = libraries.loaded(), torch_folder()
    if packages is None:
        return {"loaded": files, "foreign": [], "own": [], "loadable": []}
    own = libraries.own(packages)
    foreign = libraries.foreign(files, sys.prefix, packages, own)
    stems = {libraries.stem(path) for path in foreign}
    loadable = libraries.foreign(
        on_library_path(os.environ.get("LD_LIBRARY_PATH", "")), sys.prefix, packages, own
    )
    return {
        "loaded": files,
        "foreign": foreign,
        "own": [path for path in own if libraries.stem(path) in stems],
        "loadable": [path for path in loadable if path not in foreign],
    }


def on_library_path(value: str) -> list[str]:
    """The libraries of CUDA in the folders of LD_LIBRARY_PATH, by the names under which they are looked for."""
    folders = [entry for entry in value.replace(";", ":").split(":") if os.path.isabs(entry)]
    return sorted(
        str(path)
        for folder in dict.fromkeys(folders)
        for path in Path(folder).glob("lib*.so.*")
        if libraries.is_of_cuda(path.name)
    )


def torch_folder() -> str | None:
    """The site-packages that hold torch, also where it cannot be imported."""
    for entry in sys.path:
        if (Path(entry) / "torch" / "__init__.py").is_file():
            return os.path.abspath(entry)
    return None


def about_user_site() -> dict[str, Any]:
    """Whether packages of the user's home can leak in, how many there are, and which loaded modules already did."""
    folder = site.getusersitepackages()
    return {
        "folder": folder,
        "on_path": folder in sys.path,
        "packages": len(_packages(folder)),
        "modules": modules_of([folder], sys.modules),
    }


def about_pythonpath() -> dict[str, Any]:
    """The entries of PYTHONPATH that are in force, but those of the environment itself, and the loaded modules they brought."""
    given = [
        os.path.abspath(entry)
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry
    ]
    known = {os.path.abspath(entry) for entry in sys.path}
    if sys.flags.ignore_environment:
        # This process was started with -I and ignores them; training and notebooks are not.
        known.update(given)
    entries = [
        entry
        for entry in given
        if entry in known and _packages(entry) and not libraries.is_below(entry, sys.prefix)
    ]
    return {"entries": entries, "modules": modules_of(entries, sys.modules)}


def modules_of(folders: Iterable[str], modules: Mapping[str, ModuleType]) -> list[str]:
    """The loaded modules that were found in one of these folders itself. Ours are not meant: they are the test."""
    wanted = {os.path.normpath(folder) for folder in folders}
    ours = {"__main__", (__package__ or "").split(".")[0]}
    tops = {
        name: module
        for name, module in list(modules.items())
        if "." not in name and name not in ours
    }
    return sorted(name for name, module in tops.items() if folder_of(module) in wanted)


def folder_of(module: ModuleType) -> str | None:
    """The entry of sys.path that brought a module: a package's folder lies in it, a plain module directly."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    folder = os.path.dirname(os.path.abspath(file))
    return os.path.dirname(folder) if getattr(module, "__path__", None) else folder


def _packages(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name not in NO_PACKAGES]
    except OSError:
        return []
