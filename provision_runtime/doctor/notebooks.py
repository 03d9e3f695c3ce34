"""Probes: Jupyter kernels and running Jupyter servers of this user."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
from typing import TYPE_CHECKING, Any

from ..fs.files import read_text
from .probe import Findings, Probes, observation

if TYPE_CHECKING:
    from pathlib import Path

    from .machine import Machine

# Where Jupyter looks for data besides JUPYTER_PATH (jupyter_core's paths).
SYSTEM_FOLDERS = ("/usr/local/share/jupyter", "/usr/share/jupyter")
# The files of a running server, by its generation.
SERVER_FILES = ("jpserver-*.json", "nbserver-*.json")


def kernels(machine: Machine) -> Findings:
    variables = machine.environment
    data = variables.get("JUPYTER_DATA_DIR") or f"{machine.home}/.local/share/jupyter"
    more = filter(os.path.isabs, variables.get("JUPYTER_PATH", "").split(os.pathsep))
    for folder in (*more, data, *SYSTEM_FOLDERS):
        for file in machine.glob(f"{folder}/kernels", "*/kernel.json"):
            yield from _kernel(machine, file)


def _kernel(machine: Machine, file: Path) -> Findings:
    specification = _read_json(file)
    program = str((specification.get("argv") or [""])[0])
    if not os.path.isabs(program):
        return
    name, source = file.parent.name, machine.name(file)
    if not machine.path(program).exists():
        yield observation(
            "kernel-dangling",
            f"kernel {name} starts {program}, which does not exist",
            source,
            program,
            f"jupyter kernelspec remove {shlex.quote(name)}",
        )
        return
    # A conda environment with activation scripts or variables, none of which the kernel has.
    prefix = os.path.dirname(os.path.dirname(program))
    state = _read_json(machine.path(f"{prefix}/conda-meta/state"))
    needs_activation = state.get("env_vars") or machine.glob(prefix, "etc/conda/activate.d/*.sh")
    variables = specification.get("env") or {}
    if needs_activation and "CONDA_PREFIX" not in variables and "PATH" not in variables:
        yield observation(
            "kernel-unactivated",
            f"kernel {name} starts {program} without activating {prefix}",
            source,
            program,
        )


def servers(machine: Machine) -> Findings:
    folder = machine.variable("JUPYTER_RUNTIME_DIR") or (
        f"{machine.home}/.local/share/jupyter/runtime"
    )
    for file in [file for pattern in SERVER_FILES for file in machine.glob(folder, pattern)]:
        server = _read_json(file)
        # One that was killed left its file.
        is_running = machine.path(f"/proc/{server.get('pid')}").exists()
        is_protected = bool(server.get("token") or server.get("password"))
        if is_running and not is_protected and not _is_local(str(server.get("hostname", ""))):
            yield observation(
                "notebook-open",
                f"the server at {server.get('url')} needs neither a token nor a password",
                machine.name(file),
                "token is empty",
                f"jupyter server stop {shlex.quote(str(server.get('port')))}",
            )


def _is_local(host: str) -> bool:
    """Whether a server that listens there cannot be reached from other machines."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".sock")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


PROBES: Probes = {
    "Jupyter kernels": kernels,
    "Jupyter servers": servers,
}
