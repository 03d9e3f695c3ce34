"""Where loaded code came from: CUDA libraries that are not this environment's, and modules from a
user's home or from PYTHONPATH.

Describes what is loaded at the time of the call; judges nothing.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import libraries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from .model import LoadedLibraries, PythonPathFacts, UserSiteFacts

# A folder with nothing but these has no packages.
NO_PACKAGES = {"__pycache__", "README.txt"}


def library_facts() -> LoadedLibraries:
    files = libraries.loaded()
    # The site-packages that have torch, even if it cannot be imported.
    folders = [path for path in map(Path, sys.path) if (path / "torch/__init__.py").is_file()]
    if not folders:
        return {"loaded": files, "foreign": [], "loadable": []}
    site_packages = os.path.abspath(folders[0])
    bundled = libraries.bundled(site_packages)
    foreign = libraries.foreign(files, sys.prefix, site_packages, bundled)
    loadable = libraries.foreign(
        on_library_path(os.environ.get("LD_LIBRARY_PATH", "")), sys.prefix, site_packages, bundled
    )
    loadable = [path for path in loadable if path not in foreign]
    return {"loaded": files, "foreign": foreign, "loadable": loadable}


def on_library_path(value: str) -> list[str]:
    """The CUDA libraries in the folders of LD_LIBRARY_PATH, by the names that the linker looks
    for."""
    paths = set()
    for entry in value.replace(";", ":").split(":"):
        if os.path.isabs(entry):
            for path in Path(entry).glob("lib*.so.*"):
                if libraries.is_of_cuda(path.name):
                    paths.add(str(path))
    return sorted(paths)


def user_site_facts() -> UserSiteFacts:
    folder = site.getusersitepackages()
    return {
        "folder": folder,
        "on_path": folder in sys.path,
        "packages": len(packages(folder)),
        "modules": modules_of([folder], sys.modules),
    }


def pythonpath_facts() -> PythonPathFacts:
    """The effective entries of PYTHONPATH outside of the environment, and the modules that were
    loaded from them."""
    variable = os.environ.get("PYTHONPATH", "")
    effective = {os.path.abspath(entry) for entry in sys.path}
    entries = []
    for entry in filter(None, variable.split(os.pathsep)):
        folder = os.path.abspath(entry)
        # A process that was started with -I ignores PYTHONPATH; training and notebooks do not.
        is_effective = folder in effective or sys.flags.ignore_environment
        if is_effective and packages(folder) and not libraries.is_below(folder, sys.prefix):
            entries.append(folder)
    return {"entries": entries, "modules": modules_of(entries, sys.modules)}


def modules_of(folders: Iterable[str], modules: Mapping[str, ModuleType]) -> list[str]:
    """The loaded modules that are directly in one of these folders, except our own."""
    normalized = {os.path.normpath(folder) for folder in folders}
    ignored = {"__main__", (__package__ or "").split(".")[0]}
    return sorted(
        [
            name
            for name, module in list(modules.items())
            if "." not in name and name not in ignored and folder_of(module) in normalized
        ]
    )


def folder_of(module: ModuleType) -> str | None:
    """The entry of sys.path that a module came from: the parent of a package's folder, or the
    folder of a plain module."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    folder = os.path.dirname(os.path.abspath(file))
    return os.path.dirname(folder) if getattr(module, "__path__", None) else folder


def packages(folder: str) -> list[str]:
    """The entries of a folder that may be packages; empty if it cannot be read."""
    try:
        return [name for name in os.listdir(folder) if name not in NO_PACKAGES]
    except OSError:
        return []
