"""JupyterLab in an environment of its own, for every environment that has a kernel.

A user's environment needs ipykernel only. The server with its hundred packages stays out of it, is
installed once per user, and starts the kernels of all environments.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
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
# From printing its address to accepting connections: a busy machine loads extensions for seconds.
OPEN_TIMEOUT_S = 60.0
# What the server says once it listens; the token is as long as Jupyter makes it.
ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|localhost):(\d+)/lab\?token=[0-9a-f]+")


def server_path(folders: Folders) -> Path:
    """The environment of JupyterLab, which may not exist yet."""
    return folders.data / "jupyter" / f"py{sys.version_info.major}.{sys.version_info.minor}"


def ensure_server(
    folders: Folders, progress: Progress, mirrors: Mirrors = NO_MIRRORS, *, update: bool = False
) -> Path:
    """The `jupyter` executable, installed now if it is missing. update: install the newest.

    The wheels are checked against the hashes that the index states. A failed or killed installation
    leaves the earlier one.
    """
    path = server_path(folders)
    jupyter = path / "bin" / "jupyter"
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(path.with_name(f".{path.name}.lock")):
        if jupyter.exists() and not update:
            return jupyter
        remove_leftovers(path)
        try:
            _install(staging_path(path), path, progress, mirrors)
            replace_directory(path)
        finally:
            remove_leftovers(path)
    return jupyter


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
    uv.install_wheels(packages, interpreter, mirrors, show_bars=progress.shows_bars)
    # Notebooks run in environments, not in the server's own Python.
    shutil.rmtree(staging / "share" / "jupyter" / "kernels", ignore_errors=True)
    # Let scripts name the interpreter where it will be.
    old, new = os.fsencode(staging), os.fsencode(path)
    for script in (staging / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if old in content:
            mode = script.stat().st_mode
            script.unlink()  # it may be a hard link into uv's cache
            script.write_bytes(content.replace(old, new))
            script.chmod(mode)


def server_command(jupyter: Path, kernel: str, folder: Path, port: int | None) -> list[str]:
    """JupyterLab on loopback, with a new token, in `folder`, with `kernel` as the default.

    port: exactly that one; None: the first free one from 8888 on.
    """
    command = [
        str(jupyter.with_name("python")),
        *("-m", "jupyterlab"),
        "--no-browser",
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


def _wait_until_open(port: int) -> None:
    """Wait until the server accepts connections: it prints its address a moment earlier.

    Gives up after OPEN_TIMEOUT_S; the address is true then, too.
    """
    end = time.monotonic() + OPEN_TIMEOUT_S
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)


def serve(
    command: list[str],
    environment: Mapping[str, str],
    *,
    on_address: Callable[[str], None],
    on_line: Callable[[str], None],
) -> int:
    """Run a server until it ends; returns its exit status.

    on_address: called once, with the address and the token in it. on_line: with each line of its
    log. Both in another thread.
    """
    addresses: list[str] = []

    def read(line: str) -> None:
        match = ADDRESS.search(line)
        if match and not addresses:
            addresses.append(match[0])
            _wait_until_open(int(match[1]))
            on_address(match[0])
        on_line(line.rstrip("\n"))

    return run(command, env=environment, check=False, on_stderr_line=read).returncode
