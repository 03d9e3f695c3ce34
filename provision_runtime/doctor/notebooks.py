"""Probes: Jupyter kernels and running Jupyter servers of this user."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
from typing import TYPE_CHECKING, Any

from .probe import Probe, observation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..report.diagnosis import ObservedFinding
    from .machine import Machine

# Where Jupyter looks for data besides JUPYTER_PATH (jupyter_core's paths).
SYSTEM_FOLDERS = ("/usr/local/share/jupyter", "/usr/share/jupyter")
# The files of a running server, by its generation.
SERVER_FILES = ("jpserver-*.json", "nbserver-*.json")


def kernels(machine: Machine) -> Iterator[ObservedFinding]:
    for file in _specifications(machine):
        specification = _read_json(file)
        arguments = specification.get("argv") or []
        program = str(arguments[0]) if arguments else ""
        if not os.path.isabs(program):
            continue
        source = machine.name(file)
        if not machine.path(program).exists():
            message = f"kernel {file.parent.name} starts {program}, which does not exist"
            command = f"jupyter kernelspec remove {shlex.quote(file.parent.name)}"
            yield observation("kernel-dangling", message, source, program, command)
        elif _needs_activation(machine, program, specification):
            prefix = os.path.dirname(os.path.dirname(program))
            message = f"kernel {file.parent.name} starts {program} without activating {prefix}"
            yield observation("kernel-unactivated", message, source, program)


def _needs_activation(machine: Machine, program: str, specification: dict[str, Any]) -> bool:
    """Whether this is a conda environment with activation scripts or variables, none of which the
    kernel has."""
    prefix = os.path.dirname(os.path.dirname(program))
    scripts = machine.glob(prefix, "etc/conda/activate.d/*.sh")
    state = _read_json(machine.path(f"{prefix}/conda-meta/state"))
    if not scripts and not state.get("env_vars"):
        return False
    variables = specification.get("env") or {}
    return "CONDA_PREFIX" not in variables and "PATH" not in variables


def _specifications(machine: Machine) -> Iterator[Path]:
    folders = [f"{machine.home}/.local/share/jupyter", *SYSTEM_FOLDERS]
    if machine.environment.get("JUPYTER_DATA_DIR"):
        folders[0] = machine.environment["JUPYTER_DATA_DIR"]
    more = machine.environment.get("JUPYTER_PATH", "").split(os.pathsep)
    for folder in [*filter(os.path.isabs, more), *folders]:
        yield from machine.glob(f"{folder}/kernels", "*/kernel.json")


def servers(machine: Machine) -> Iterator[ObservedFinding]:
    folder = machine.environment.get("JUPYTER_RUNTIME_DIR") or (
        f"{machine.home}/.local/share/jupyter/runtime"
    )
    for pattern in SERVER_FILES:
        for file in machine.glob(folder, pattern):
            server = _read_json(file)
            if not machine.path(f"/proc/{server.get('pid')}").exists():
                continue  # it was killed, and left its file
            is_protected = bool(server.get("token") or server.get("password"))
            if not is_protected and not _is_local(str(server.get("hostname", ""))):
                message = f"the server at {server.get('url')} needs neither a token nor a password"
                command = f"jupyter server stop {shlex.quote(str(server.get('port')))}"
                yield observation(
                    "notebook-open", message, machine.name(file), "token is empty", command
                )


def _is_local(host: str) -> bool:
    """Whether a server that listens there cannot be reached from other machines."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".sock")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(errors="replace"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


PROBES = (
    Probe("Jupyter kernels", ("kernel-dangling", "kernel-unactivated"), kernels),
    Probe("Jupyter servers", ("notebook-open",), servers),
)
