"""Prefix -> Jupyter kernel: a kernelspec that starts the prefix's interpreter with only the
prefix's packages.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from provision.core.atomic import atomic_write, remove_tree
from provision.core.dataclass import frozen
from provision.core.errors import InUse
from provision.core.records import parse_record
from provision.core.settings import xdg_folder
from provision.core.similar_names import did_you_mean
from provision.core.types import Kernel, Prefix, Resolution
from provision.environment import marker

LAUNCHER = "ipykernel"  # the package with which Jupyter starts an environment
# An extension of IPython, which says in the first cell if the environment is not up to date.
NOTICE = "provision_runtime.facts.freshness"


@frozen
class KernelOwner:
    """The environment of a kernel."""

    name: str
    lock_sha256: str


@frozen
class KernelMetadata:
    """provision: marks a kernel as ours."""

    debugger: bool = True
    provision: KernelOwner


@frozen
class KernelSpec:
    """The content of a kernel.json that provision wrote."""

    argv: tuple[str, ...]
    display_name: str
    language: str = "python"
    env: Mapping[str, str]
    metadata: KernelMetadata


def display_name(resolution: Resolution, project: str) -> str:
    """The kernel's name in Jupyter's menu: Python (torch 2.3, CUDA 12.1, project/lab)."""
    spec = resolution.spec
    device = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
    return f"Python (torch {spec.torch}, {device}, {project}/{spec.name})"


def kernel_name(prefix: Prefix) -> str:
    """The name of a prefix's kernel, as notebooks record it: the environment's, unless another
    project's environment of that name has it."""
    name = prefix.name
    for kernel in list_kernels():
        if kernel.prefix == prefix.path:
            return kernel.name
        if kernel.name == prefix.name and _is_of_other_project(kernel.prefix, prefix.path):
            name += f"-{hashlib.sha256(os.fsencode(prefix.path)).hexdigest()[:6]}"
    return name


def _is_of_other_project(present: Path, prefix: Path) -> bool:
    other, this = marker.read(present), marker.read(prefix)
    return other is not None and this is not None and other.folder != this.folder


def kernel_spec(prefix: Prefix, display_name: str) -> KernelSpec:
    from provision.environment.activation import activation_variables

    argv = (str(prefix.python), "-m", "ipykernel_launcher", "-f", "{connection_file}")
    owner = KernelOwner(name=prefix.name, lock_sha256=prefix.lock_sha256)
    return KernelSpec(
        argv=(*argv, f"--ext={NOTICE}"),
        display_name=display_name,
        env=activation_variables(prefix),
        metadata=KernelMetadata(provision=owner),
    )


def kernels_folder() -> Path:
    """The folder of this user's kernelspecs (jupyter_core's paths)."""
    folder = os.environ.get("JUPYTER_DATA_DIR") or xdg_folder("DATA") / "jupyter"
    return Path(folder, "kernels")


def has_launcher(prefix: Prefix) -> bool:
    """Whether Jupyter can start this prefix."""
    return any(prefix.path.glob(f"lib/python3.*/site-packages/{LAUNCHER}-*.dist-info"))


def is_current(prefix: Prefix, display_name: str) -> bool:
    """Whether the installed kernel is the one that `install` would write."""
    return _read(kernels_folder() / kernel_name(prefix)) == kernel_spec(prefix, display_name)


def check_name(name: str) -> None:
    """Raise InUse if a kernel of this name exists that provision did not create."""
    folder = kernels_folder() / name
    if not folder.exists() or _read(folder) is not None:
        return
    # Jupyter ignores the hidden files that a killed `install` leaves.
    if folder.is_dir() and all(path.name.startswith(".") for path in folder.iterdir()):
        return
    raise InUse(
        f"The Jupyter kernel `{name}` ({folder}) was not created by provision.",
        advice="Remove it with `jupyter kernelspec remove`, or choose another name for the "
        "environment (`provision build NAME ...`).",
    )


def install(prefix: Prefix, display_name: str) -> tuple[Kernel, bool]:
    """The kernelspec for this user, and whether it was written now, perhaps over our own.

    Raises InUse if the name belongs to another kernel.
    """
    name = kernel_name(prefix)
    path = kernels_folder() / name
    kernel = Kernel(name=name, display_name=display_name, path=path, prefix=prefix.path)
    if is_current(prefix, display_name):
        return kernel, False
    check_name(name)
    content = json.dumps(asdict(kernel_spec(prefix, display_name)), indent=1)
    atomic_write(path / "kernel.json", content + "\n")
    return kernel, True


def list_kernels() -> list[Kernel]:
    """This user's kernels that provision created."""
    kernels = []
    for path in sorted(kernels_folder().glob("*")):
        spec = _read(path)
        if spec is not None:
            prefix = Path(spec.env["CONDA_PREFIX"])
            kernels.append(
                Kernel(name=path.name, display_name=spec.display_name, path=path, prefix=prefix)
            )
    return kernels


def find(name: str, prefix: Path | None = None) -> Kernel:
    """The kernel of the environment in a prefix, else the one of that name, if provision created it.
    Raises InUse if there is none."""
    kernels = {kernel.name: kernel for kernel in list_kernels()}
    for kernel in kernels.values():
        if kernel.prefix == prefix:
            return kernel
    if name not in kernels:
        raise InUse(
            f"provision created no Jupyter kernel `{name}`.",
            advice=(
                f"{did_you_mean(name, kernels)}Kernels that it created: "
                f"{', '.join(kernels) or 'none'}."
            ),
        )
    return kernels[name]


def remove(name: str, prefix: Path | None = None) -> Path:
    """Remove a kernel that provision created, see `find`; returns its former folder."""
    path = find(name, prefix).path
    remove_tree(path)
    return path


def remove_kernel_of(prefix: Prefix) -> bool:
    """Remove this prefix's kernel. Returns whether there was one."""
    kernels = [kernel for kernel in list_kernels() if kernel.prefix == prefix.path]
    for kernel in kernels:
        remove_tree(kernel.path)
    return bool(kernels)


def _read(folder: Path) -> KernelSpec | None:
    """A kernel of ours. All others are left alone."""
    try:
        spec = parse_record(KernelSpec, (folder / "kernel.json").read_bytes())
    except (OSError, ValueError):
        return None
    return spec if "CONDA_PREFIX" in spec.env else None
