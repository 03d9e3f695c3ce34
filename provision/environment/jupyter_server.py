"""JupyterLab in an environment of its own, for every environment that has a kernel.

A user's environment needs ipykernel only. The server with its hundred packages stays out of it, is
installed once per user, and starts the kernels of all environments.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from provision.adapters import uv
from provision.core.atomic import remove_leftovers, replace_directory, staging_path
from provision.core.file_locks import exclusive_lock
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.paths import Folders
from provision.core.process import clean_environment, run
from provision.core.types import Progress

REQUIREMENTS = ("jupyterlab>=4,<5",)
DEFAULT_PORT = 8888


def ensure_server(
    folders: Folders, progress: Progress, mirrors: Mirrors = NO_MIRRORS, *, update: bool = False
) -> Path:
    """The Python of JupyterLab's environment, installed now if it is missing. update: install the
    newest.

    The wheels are checked against the hashes that the index states. A failed or killed installation
    leaves the earlier one.
    """
    path = folders.data / "jupyter" / f"py{sys.version_info.major}.{sys.version_info.minor}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(path.with_name(f".{path.name}.lock")):
        if update or not path.exists():
            remove_leftovers(path)
            try:
                _install(staging_path(path), path, progress, mirrors)
                replace_directory(path)
            finally:
                remove_leftovers(path)
    return path / "bin" / "python"


def _install(staging: Path, path: Path, progress: Progress, mirrors: Mirrors) -> None:
    # This machine's glibc is the only one that has to fit: the server runs nowhere else.
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or "glibc 2.28"
    with progress.meter("finding the packages of JupyterLab", 0):
        packages = uv.resolve(
            uv.ResolveRequest(
                requirements=REQUIREMENTS,
                python=f"{sys.version_info.major}.{sys.version_info.minor}",
                glibc=glibc.rpartition(" ")[2],
                mirrors=mirrors,
            )
        )
    progress.info(f"installing JupyterLab into {path}, once for all environments")
    run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", staging])
    interpreter = staging / "bin" / "python"
    with progress.meter("installing wheels", 0):
        uv.install_wheels(packages, interpreter, mirrors, on_line=progress.info)
    # Notebooks run in environments, not in the server's own Python.
    shutil.rmtree(staging / "share" / "jupyter" / "kernels", ignore_errors=True)


def server_command(python: Path, kernel: str, folder: Path, port: int | None) -> list[str]:
    """JupyterLab on loopback, with a new token, in `folder`, with `kernel` as the default.

    port: exactly that one; None: the first free one from 8888 on.
    """
    command = [
        str(python),
        *("-m", "jupyterlab"),
        "--no-browser",
        "--ServerApp.log_level=WARN",  # besides its address
        "--ServerApp.answer_yes=True",  # to the question at Ctrl-C
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port or DEFAULT_PORT}",
        f"--ServerApp.port_retries={0 if port else 50}",
        f"--ServerApp.root_dir={folder}",
        f"--MultiKernelManager.default_kernel_name={kernel}",
        "--KernelSpecManager.ensure_native_kernel=False",
    ]
    if os.geteuid() == 0:
        command.append("--allow-root")
    return command


def server_variables() -> dict[str, str]:
    """The variables of the server: none that would lead its Python elsewhere, and no token that
    was set for another server."""
    variables = clean_environment({"PYTHONNOUSERSITE": "1"})
    for name in ("JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE"):
        variables.pop(name, None)
    return variables
