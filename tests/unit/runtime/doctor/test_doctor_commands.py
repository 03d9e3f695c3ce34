"""The commands that doctor prints are safe to copy, whatever files are called."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from provision_runtime.doctor import access, notebooks, settings
from provision_runtime.doctor.machine import Machine
from provision_runtime.report import diagnosis


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
    commands = [observation.command for observation in access.keys(machine)]
    assert [shlex.split(command) for command in commands] == [["chmod", "600", str(key)]]


def test_an_agent_whose_path_is_too_long_for_a_socket(machine: Machine) -> None:
    variables = {"SSH_AUTH_SOCK": "/" + "x" * 200}
    (dead,) = access.agent(Machine(environment=variables, home=machine.home))
    assert dead.finding.message.endswith("does not respond: AF_UNIX path too long")


def test_a_kernel_with_an_odd_name(machine: Machine) -> None:
    folder = Path(machine.home) / ".local/share/jupyter/kernels/$(reboot)"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["/nowhere/python"]}')
    commands = [observation.command for observation in notebooks.kernels(machine)]
    assert [shlex.split(command)[-1] for command in commands] == ["$(reboot)"]


def test_settings_are_one_finding_without_passwords(machine: Machine) -> None:
    variables = {"PIP_EXTRA_INDEX_URL": "https://me:secret@host/simple", "UV_PRERELEASE": "allow"}
    found = list(settings.build_settings(Machine(environment=variables, home=machine.home)))
    assert len(found) == 1
    document = found[0].reported().as_json()
    assert "secret" not in str(document)
    assert "= https://host/simple (" in document["message"]
    lines = diagnosis.finding_lines(document, None)
    assert [line.strip() for line in lines if "$ " in line] == [
        "$ unset PIP_EXTRA_INDEX_URL",
        "$ unset UV_PRERELEASE",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[global]\nindex-url = https://mirror/simple\n", []),
        ("[global]\nuser = false\n", []),
        ("[global]\nuser = true\n", ["global.user"]),
        ("[install]\nno_binary = :all:\n", ["install.no-binary"]),
        ("not a file of settings", []),
    ],
)
def test_pip_settings(machine: Machine, text: str, expected: list[str]) -> None:
    path = Path(machine.home) / ".config/pip/pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    options = [setting.option.replace("_", "-") for setting in settings.pip(machine)]
    assert options == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("channels:\n  - conda-forge\nchannel_priority: strict\nssl_verify: /etc/ca.pem\n", []),
        ("channel_priority: disabled\n", ["channel_priority"]),
        ("ssl_verify: false\n", ["ssl_verify"]),
        ("create_default_packages:\n  - ipykernel\n", ["create_default_packages"]),
    ],
)
def test_conda_settings(machine: Machine, text: str, expected: list[str]) -> None:
    (Path(machine.home) / ".condarc").write_text(text)
    assert [setting.option for setting in settings.conda(machine)] == expected
