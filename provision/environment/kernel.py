"""Prefix -> Jupyter kernel: a kernelspec that starts the prefix's interpreter with only the
prefix's packages.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from provision.core.atomic import atomic_write
from provision.core.errors import InUse
from provision.core.json_text import parse_json
from provision.core.similar_names import did_you_mean
from provision.core.types import Kernel, Prefix, Resolution
from provision.environment.activation import activation_variables

LAUNCHER = "ipykernel"  # the package with which Jupyter starts an environment
OWNER = "provision"  # the key in kernel.json's metadata that marks a kernel as ours


def display_name(resolution: Resolution) -> str:
    """The kernel's name in Jupyter's menu, e.g. Python (torch 2.3, CUDA 12.1).

    If another kernel of this user has that name, or an earlier one had when this was registered, the
    environment's name is added, so that a menu never shows two of the same name.
    """
    name = resolution.spec.name
    device = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
    plain = f"Python (torch {resolution.spec.torch}, {device})"
    with_name = f"Python (torch {resolution.spec.torch}, {device}, {name})"
    own = (_read(kernelspec_folder(name)) or {}).get("display_name")
    if own == with_name or plain in _other_display_names(name):
        return with_name
    return plain


def _other_display_names(name: str) -> set[str]:
    """The names of all kernels of this user but that of this environment, whoever made them."""
    names = set()
    for folder in kernels_folder().glob("*"):
        display_name = (_read(folder) or {}).get("display_name")
        if folder.name != name and isinstance(display_name, str):
            names.add(display_name)
    return names


def kernel_json(prefix: Prefix, display_name: str) -> dict[str, Any]:
    """The content of kernel.json."""
    return {
        "argv": [str(prefix.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "env": activation_variables(prefix),
        "metadata": {
            "debugger": True,
            OWNER: {"name": prefix.name, "lock_sha256": prefix.lock_sha256},
        },
    }


def kernels_folder() -> Path:
    """The folder of this user's kernelspecs."""
    from jupyter_core.paths import jupyter_data_dir

    return Path(jupyter_data_dir()) / "kernels"


def kernelspec_folder(name: str) -> Path:
    """The folder of this user's kernelspec of this name, which may not exist yet."""
    return kernels_folder() / name


def has_launcher(prefix: Prefix) -> bool:
    """Whether Jupyter can start this prefix."""
    return any(prefix.path.glob(f"lib/python3.*/site-packages/{LAUNCHER}-*.dist-info"))


def is_current(prefix: Prefix, display_name: str) -> bool:
    """Whether the installed kernel is the one that `install` would write."""
    return _read(kernelspec_folder(prefix.name)) == kernel_json(prefix, display_name)


def check_name(name: str) -> None:
    """Raise InUse if a kernel of this name exists that provision did not create."""
    folder = kernelspec_folder(name)
    if _is_empty(folder) or _is_ours(_read(folder)):
        return
    raise InUse(
        f"The Jupyter kernel `{name}` ({folder}) was not created by provision.",
        advice="Remove it with `jupyter kernelspec remove`, or choose another name for the "
        "environment (`provision build NAME ...`).",
    )


def _is_empty(folder: Path) -> bool:
    """Whether the folder is missing or has only the hidden files that a killed `install` left.

    Jupyter ignores those.
    """
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    return all(path.name.startswith(".") for path in folder.iterdir())


def _is_ours(spec: dict[str, Any] | None) -> bool:
    """Whether this is a complete kernel.json of ours. We leave all other kernels alone."""
    if spec is None:
        return False
    metadata, variables = spec.get("metadata"), spec.get("env")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(OWNER), dict):
        return False
    if not isinstance(variables, dict) or not isinstance(variables.get("CONDA_PREFIX"), str):
        return False
    return isinstance(spec.get("display_name"), str)


def install(prefix: Prefix, display_name: str) -> Kernel:
    """Install the kernelspec for this user, or replace our own.

    Raises InUse if the name belongs to another kernel.
    """
    check_name(prefix.name)
    path = kernelspec_folder(prefix.name)
    content = json.dumps(kernel_json(prefix, display_name), indent=1) + "\n"
    atomic_write(path / "kernel.json", content)
    return Kernel(name=prefix.name, display_name=display_name, path=path, prefix=prefix.path)


def list_kernels() -> list[Kernel]:
    """This user's kernels that provision created."""
    kernels = []
    for path in sorted(kernels_folder().glob("*")):
        spec = _read(path)
        if spec is not None and _is_ours(spec):
            prefix = Path(spec["env"]["CONDA_PREFIX"])
            display_name = spec["display_name"]
            kernels.append(
                Kernel(name=path.name, display_name=display_name, path=path, prefix=prefix)
            )
    return kernels


def find(name: str) -> Kernel:
    """A kernel that provision created.

    Raises InUse if there is no such kernel, or if it belongs to something else.
    """
    kernels = {kernel.name: kernel for kernel in list_kernels()}
    if name not in kernels:
        raise InUse(
            f"provision created no Jupyter kernel `{name}`.",
            advice=(
                f"{did_you_mean(name, kernels)}Kernels that it created: "
                f"{', '.join(kernels) or 'none'}."
            ),
        )
    return kernels[name]


def remove(name: str) -> Path:
    """Remove a kernel that provision created; returns its former folder."""
    path = find(name).path
    shutil.rmtree(path)
    return path


def remove_kernel_of(prefix: Prefix) -> bool:
    """Remove this prefix's kernel, which cannot start without its launcher.

    Returns whether there was a kernel.
    """
    for kernel in list_kernels():
        if kernel.name == prefix.name and kernel.prefix == prefix.path:
            shutil.rmtree(kernel.path)
            return True
    return False


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        spec = parse_json((folder / "kernel.json").read_text())
    except (OSError, ValueError):
        return None
    return spec if isinstance(spec, dict) else None
