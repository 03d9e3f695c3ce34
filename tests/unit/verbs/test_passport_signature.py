"""Passports signed by an ssh key: who signed one, and what does not count."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.paths import default_folders
from provision.environment.passport import FILE
from tests import evidence

pytestmark = pytest.mark.needs("ssh-keygen")


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab's folder with the environment lab, its passport, and a key whose owner may sign."""
    (tmp_path / "envs" / "lab").mkdir(parents=True)
    path = default_folders(tmp_path / "envs").passport("lab") / FILE
    evidence.write(path, {**evidence.passport(), "name": "lab"})
    for name in ("key", "stranger"):
        key = str(tmp_path / name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (tmp_path / "signers").write_text(f"ann@lab {(tmp_path / 'key.pub').read_text()}")
    return tmp_path


def run(lab: Path, *words: str | Path) -> Result:
    arguments = ["passport", *map(str, words), "--envs", str(lab / "envs")]
    return CliRunner().invoke(cli, arguments)


def test_who_signed_a_passport(lab: Path) -> None:
    (lab / "lab.yml").write_text("schema: 1\nname: lab\ncontact: me\nallowed_signers: signers\n")
    assert run(lab, "sign", "lab", lab / "key").exit_code == 0
    result = run(lab, "verify", "lab")
    assert result.exit_code == 0, result.output
    assert "signed by ann@lab" in " ".join(result.output.split())


@pytest.mark.parametrize("target", [".", "/tmp"])
def test_a_folder_without_a_passport_is_refused(lab: Path, target: str) -> None:
    result = run(lab, "verify", target, "--signers", lab / "signers")
    assert result.exit_code == InvalidSpec.exit_code
    assert "Environments with a passport: lab" in result.output


def test_signatures_that_do_not_count(lab: Path) -> None:
    verify = ("verify", "lab", "--signers", lab / "signers")
    assert run(lab, *verify).exit_code == IntegrityError.exit_code
    assert run(lab, "verify", "lab").exit_code == InvalidSpec.exit_code
    run(lab, "sign", "lab", lab / "stranger")
    assert run(lab, *verify).exit_code == IntegrityError.exit_code
    run(lab, "sign", "lab", lab / "key")
    path = default_folders(lab / "envs").passport("lab") / FILE
    path.write_text(path.read_text().replace("lab", "lib"))
    assert run(lab, *verify).exit_code != 0
