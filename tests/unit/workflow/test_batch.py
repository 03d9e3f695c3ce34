"""Commands over many environments that need no network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision import lockfile, render
from provision.adapters import conda
from provision.cli.main import cli
from provision.core.paths import default_folders
from provision.core.types import LockedPackage
from provision.environment import passport
from tests import evidence
from tests.small import lock_text

FORGE = conda.channel_url("conda-forge")

SPEC = 'torch: "2.3"\ncuda: "12.1"\npython: "3.11"\npython_from: channel\n'


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four environments: new, rendered, rendered and edited, and one that no build fits."""
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for name in ("edited", "rendered", "new"):
        (tmp_path / "envs" / name).mkdir(parents=True)
        (tmp_path / "envs" / name / "spec.yml").write_text(SPEC)
    for name in ("edited", "rendered"):
        assert run("render", name).exit_code == 0
    with (tmp_path / "envs" / "edited" / "environment.yml").open("a") as file:
        file.write("  - six\n")
    (tmp_path / "envs" / "wrong").mkdir()
    (tmp_path / "envs" / "wrong" / "spec.yml").write_text('torch: "2.1"\ncuda: "12.9"\n')
    return tmp_path


def run(*command_line: str) -> Result:
    return CliRunner().invoke(cli, list(command_line))


def outcomes(result: Result) -> Mapping[str, tuple[str, str]]:
    rows = json.loads(result.stdout)["environments"]
    return {row["name"]: (row["status"], row["detail"]) for row in rows}


def texts(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in folder.rglob("*") if path.is_file()}


def inputs(folder: Path) -> lockfile.LockInputs:
    return lockfile.read_inputs(
        (folder / lockfile.ENVIRONMENT).read_text(),
        (folder / lockfile.VIRTUAL_PACKAGES).read_text(),
        folder,
    )


def write_lock(folder: Path) -> bytes:
    """The lock of a rendered folder, of packages that nobody solved."""
    packages = [
        LockedPackage(
            manager="conda",
            name=name,
            version=version,
            build="0",
            url=f"{FORGE}linux-64/{name}-{version}-0.conda",
            sha256="a" * 64,
        )
        for name, version in (("python", "3.11.9"), ("pip", "24.0"))
    ]
    (folder / lockfile.FILE).write_text(lock_text(inputs(folder), packages))
    return (folder / lockfile.FILE).read_bytes()


def test_copied_or_renamed_folder_needs_no_new_lock(lab: Path) -> None:
    before = write_lock(lab / "envs" / "rendered")
    shutil.copytree(lab / "envs" / "rendered", lab / "envs" / "copy")
    (lab / "envs" / "rendered").rename(lab / "envs" / "renamed")
    for name in ("copy", "renamed"):
        locked = run("lock", name)
        assert (locked.exit_code, locked.stdout.partition(":")[0]) == (0, "already locked"), (
            locked.output
        )
        assert (lab / "envs" / name / lockfile.FILE).read_bytes() == before
        assert f"name: {name}\n" in (lab / "envs" / name / "environment.yml").read_text()
        (lab / "envs" / name / "spec.yml").write_text(SPEC + "conda: [zlib]\n")
        stale = run("lock", name)
        assert stale.exit_code == 6 and "is stale: the request changed" in stale.stderr


def test_nodefaults_makes_no_lock_stale(lab: Path) -> None:
    """An earlier provision wrote it."""
    folder = lab / "envs" / "rendered"
    write_lock(folder)
    lock_inputs = inputs(folder)
    environment = folder / "environment.yml"
    body = environment.read_text().split("\n", 2)[2]
    body = body.replace("dependencies:", "  - nodefaults\ndependencies:")
    environment.write_text(render.with_header("rendered", body))
    assert inputs(folder).sha256 == lock_inputs.sha256
    assert run("lock", "rendered").stdout.startswith("already locked")


@pytest.mark.parametrize(
    "verb",
    [
        "render",
        "lock",
        "lock --relock",
        "lock --dry-run",
        "build --no-image --dry-run",
        "env create",
    ],
)
def test_hand_edits_are_refused_and_stay(lab: Path, verb: str) -> None:
    """spec.yml alone decides what is locked, and nobody's work is overwritten."""
    write_lock(lab / "envs" / "edited")
    before = texts(lab / "envs" / "edited")
    refused = run(*verb.split(), "edited")
    assert refused.exit_code == 6, refused.output
    assert "environment.yml was edited by hand" in refused.stderr
    assert "Write the change into" in refused.stderr
    assert texts(lab / "envs" / "edited") == before


def test_copied_passport_belongs_to_another_environment(lab: Path) -> None:
    document = evidence.passport(evidence.report(evidence.phase()))
    document["name"] = "rendered"
    passports = default_folders(lab / "envs").passport("rendered").parent
    evidence.write(passports / "rendered" / passport.FILE, document)
    shutil.copytree(passports / "rendered", passports / "copy")
    shutil.copytree(lab / "envs" / "rendered", lab / "envs" / "copy")
    assert run("passport", "show", "rendered").exit_code == 0
    result = run("passport", "show", "copy")
    assert result.exit_code == 3 and "passport.json belongs to another environment" in result.stderr
