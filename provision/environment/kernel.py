"""Prefix -> Jupyter kernel: a kernelspec that starts this prefix's interpreter and nothing else's packages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from provision.core.atomic import atomic_write
from provision.core.errors import InUse
from provision.core.types import Kernel, Prefix, Resolution

LAUNCHER = "ipykernel"  # the package by which Jupyter starts an environment
OWNER = "provision"  # the key in kernel.json's metadata by which we know our own


def activation(prefix: Prefix) -> dict[str, str]:
    """What a shell's activation would set, as values: for kernels and for running a program of the prefix without a shell.

    PYTHONNOUSERSITE keeps ~/.local packages out (conda/conda#7173). PYTHONPATH and LD_LIBRARY_PATH are emptied because either
    puts other builds of torch's libraries first (pytorch/pytorch#80637).
    """
    return {
        "CONDA_PREFIX": str(prefix.path),
        "CONDA_DEFAULT_ENV": prefix.name,
        "PATH": f"{prefix.path / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "",
        "LD_LIBRARY_PATH": "",
        "PROVISION_LOCK_HASH": prefix.lock_sha256,
    }


def display_name(resolution: Resolution) -> str:
    """What Jupyter's menu shows, e.g. Python (torch 2.3, CUDA 12.1)."""
    return f"Python (torch {resolution.spec.torch}, {'CUDA ' + resolution.cuda if resolution.cuda else 'CPU'})"


def kernel_json(prefix: Prefix, shown: str) -> dict[str, Any]:
    """The content of kernel.json."""
    return {
        "argv": [str(prefix.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": shown,
        "language": "python",
        "env": activation(prefix),
        "metadata": {
            "debugger": True,
            OWNER: {"name": prefix.name, "lock_sha256": prefix.lock_sha256},
        },
    }


def _manager() -> Any:
    from jupyter_client.kernelspec import KernelSpecManager

    return KernelSpecManager()


def user_folder(name: str) -> Path:
    """Where the user's kernelspec of this name is, or would be."""
    return Path(_manager().user_kernel_dir) / name


def is_startable(prefix: Prefix) -> bool:
    """Whether the prefix holds what Jupyter starts it by, whoever installed it."""
    return any(prefix.path.glob(f"lib/python3.*/site-packages/{LAUNCHER}-*.dist-info"))


def is_current(prefix: Prefix, shown: str) -> bool:
    """Whether the installed kernel is exactly what would be installed."""
    return _read(user_folder(prefix.name)) == kernel_json(prefix, shown)


def check_name(name: str) -> None:
    """Raise InUse when a kernel of this name belongs to something that is not ours."""
    folder = user_folder(name)
    if _is_taken(folder) and not _is_ours(_read(folder)):
        raise InUse(
            f"The Jupyter kernel `{name}` ({folder}) was not made by provision.",
            advice="Remove it with `jupyter kernelspec remove`, or give the environment another name (`provision build NAME ...`).",
        )


def _is_taken(folder: Path) -> bool:
    """Whether there is more than what a killed `add` may have left: a folder without a file that Jupyter would look at."""
    return folder.exists() and (
        not folder.is_dir() or any(not path.name.startswith(".") for path in folder.iterdir())
    )


def _is_ours(spec: dict[str, Any] | None) -> bool:
    """Whether this is a whole kernel.json of ours; anything else in Jupyter's folder is somebody's and left alone."""
    if (
        spec is None
        or not isinstance(spec.get("metadata"), dict)
        or not isinstance(spec["metadata"].get(OWNER), dict)
    ):
        return False
    return (
        isinstance(spec.get("display_name"), str)
        and isinstance(spec.get("env"), dict)
        and "CONDA_PREFIX" in spec["env"]
    )


def add(prefix: Prefix, shown: str) -> Kernel:
    """Install (or replace our own) kernelspec for this user. Raises InUse when the name belongs to something that is not ours."""
    check_name(prefix.name)
    path = user_folder(prefix.name)
    atomic_write(path / "kernel.json", json.dumps(kernel_json(prefix, shown), indent=1) + "\n")
    return Kernel(name=prefix.name, display_name=shown, path=path, prefix=prefix.path)


def installed() -> list[Kernel]:
    """The kernels of this user that provision made."""
    folder = Path(_manager().user_kernel_dir)
    found = ((path, _read(path)) for path in sorted(folder.glob("*")) if path.is_dir())
    return [
        Kernel(
            name=path.name,
            display_name=spec["display_name"],
            path=path,
            prefix=Path(spec["env"]["CONDA_PREFIX"]),
        )
        for path, spec in found
        if spec is not None and _is_ours(spec)
    ]


def find(name: str) -> Kernel:
    """A kernel of ours. Raises InUse if it is somebody else's or not there."""
    ours = {kernel.name: kernel for kernel in installed()}
    if name not in ours:
        listed = ", ".join(ours) or "none"
        raise InUse(
            f"There is no Jupyter kernel `{name}` of provision's.",
            advice=f"Kernels of provision: {listed}.",
        )
    return ours[name]


def remove(name: str) -> Path:
    """Remove a kernel of ours and return where it was."""
    path = find(name).path
    shutil.rmtree(path)
    return path


def remove_of(prefix: Prefix) -> bool:
    """Remove the kernel of this prefix, if there is one: without its launcher it would not start."""
    stale = any(
        kernel.name == prefix.name and kernel.prefix == prefix.path for kernel in installed()
    )
    if stale:
        remove(prefix.name)
    return stale


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        spec = json.loads((folder / "kernel.json").read_text())
    except (OSError, ValueError):
        return None
    return spec if isinstance(spec, dict) else None
