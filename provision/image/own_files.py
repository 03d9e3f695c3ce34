"""The files that provision itself adds to an image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from provision.core.container import PREFIX, PYTHON, WORKSPACE
from provision.core.types import LockedPackage

if TYPE_CHECKING:
    from provision.image.layers import LayerEntry

COMMAND = "/usr/local/bin/provision-smoke"

COMMAND_SCRIPT = f"""\
#!/bin/sh
# The smoke test of this environment: provision-smoke --out DIR
exec {PYTHON} -I -m provision_runtime smoke "$@"
"""

# conda recognizes an environment by this file. rattler leaves it empty, and so do we, because conda
# would write times into it.
HISTORY = "conda-meta/history"

# NVIDIA's container toolkit looks there for CUDA's libraries for older drivers, follows links, and takes
# them if the driver is older (cmd/nvidia-cdi-hook/cudacompat). conda-forge's package has them elsewhere.
COMPAT_PACKAGE = "cuda-compat"
COMPAT_LINK = ("/usr/local/cuda/compat", f"{PREFIX}/cuda-compat")


def site_packages(python: str) -> str:
    """Where Python packages are in an image. python: minor version, e.g. 3.11."""
    return f"{PREFIX}/lib/python{python}/site-packages"


def has_compat(packages: Iterable[LockedPackage]) -> bool:
    return any(package.name == COMPAT_PACKAGE for package in packages)


def provision_entries(
    runtime: Mapping[str, bytes], python: str, packages: Iterable[LockedPackage] = ()
) -> list[LayerEntry]:
    """The runtime package, the command of the smoke test, and a folder that any user may write to.

    runtime: the files of the runtime package by their paths below site-packages. packages: of the lock.
    """
    from provision.image.layers import LayerEntry

    folder = site_packages(python)
    entries = [
        *(LayerEntry.of(f"{folder}/{path}", content) for path, content in runtime.items()),
        LayerEntry.of(COMMAND, COMMAND_SCRIPT.encode(), executable=True),
        LayerEntry.of(f"{PREFIX}/{HISTORY}", b""),
        LayerEntry(path=WORKSPACE.lstrip("/"), kind="folder", mode=0o1777),
    ]
    if has_compat(packages):
        path, target = COMPAT_LINK
        entries.append(LayerEntry(path=path.lstrip("/"), kind="link", mode=0o777, target=target))
    return sorted(entries, key=lambda entry: entry.path)
