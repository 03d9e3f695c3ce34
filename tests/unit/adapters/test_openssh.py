"""The user's keys, as OpenSSH's own programs see them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provision.adapters import openssh


@pytest.mark.needs("ssh-keygen", "ssh-add")
def test_keys_that_ssh_cannot_use_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for name, passphrase in (("id_ed25519", "secret"), ("id_open", "")):
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            passphrase,
            "-f",
            f"{tmp_path}/{name}",
        ]
        subprocess.run(command, check=True)
    assert openssh.locked_keys(tmp_path) == (tmp_path / "id_ed25519",)
