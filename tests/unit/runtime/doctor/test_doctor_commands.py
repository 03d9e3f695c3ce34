"""The commands that doctor prints are safe to copy, whatever files are called."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from provision_runtime.doctor import access, notebooks
from provision_runtime.doctor.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "home").mkdir(mode=0o755)
    return Machine(environment={}, home=str(tmp_path / "home"))


def test_a_key_with_an_odd_name(machine: Machine) -> None:
    folder = Path(machine.home) / ".ssh"
    folder.mkdir(mode=0o700)
    key = folder / "id x; rm -rf $HOME"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    key.chmod(0o644)
    commands = [observation["command"] for observation in access.keys(machine)]
    assert [shlex.split(command) for command in commands] == [["chmod", "600", str(key)]]


def test_an_agent_whose_path_is_too_long_for_a_socket(machine: Machine) -> None:
    variables = {"SSH_AUTH_SOCK": "/" + "x" * 200}
    (dead,) = access.agent(Machine(environment=variables, home=machine.home))
    assert dead["message"].endswith("does not respond: AF_UNIX path too long")


def test_a_kernel_with_an_odd_name(machine: Machine) -> None:
    folder = Path(machine.home) / ".local/share/jupyter/kernels/$(reboot)"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["/nowhere/python"]}')
    commands = [observation["command"] for observation in notebooks.kernels(machine)]
    assert [shlex.split(command)[-1] for command in commands] == ["$(reboot)"]
