"""Commands over many environments that need no network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision import lockfile
from provision.adapters import conda
from provision.cli.main import cli
from provision.core.paths import default_folders
from provision.core.types import LockedPackage
from provision.environment import passport
from tests import evidence

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


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["plain", "force"])
def test_render_all_dry_run_predicts_what_rendering_does(lab: Path, force: tuple[str, ...]) -> None:
    before = texts(lab / "envs")
    result = run("render", "--all", "--dry-run", "--json", *force)
    assert texts(lab / "envs") == before
    assert result.exit_code == 1
    rows = outcomes(result)
    folder = lab / "envs"
    assert rows["new"] == (
        "pending",
        f"would write environment.yml, virtual-packages.yml in {folder / 'new'}",
    )
    assert rows["rendered"] == ("kept", "all files are as rendered")
    assert rows["wrong"][0] == "failed" and "no build for torch 2.1, CUDA 12.9" in rows["wrong"][1]
    if force:
        assert rows["edited"] == (
            "pending",
            f"would write environment.yml (undoing an edit by hand) in {folder / 'edited'}",
        )
    else:
        assert rows["edited"][0] == "failed" and "was edited by hand" in rows["edited"][1]
    locked = outcomes(run("render", "--all", "--json", *force))
    assert {name for name, (status, _) in locked.items() if status == "made"} == {
        n for n, (status, _) in rows.items() if status == "pending"
    }
    assert {name: row for name, row in locked.items() if row[0] == "failed"} == {
        n: row for n, row in rows.items() if row[0] == "failed"
    }


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
    (folder / lockfile.FILE).write_text(
        lockfile.lock_text(inputs(folder), packages, python_from="channel")
    )
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
    folder = lab / "envs" / "rendered"
    write_lock(folder)
    lock_inputs = inputs(folder)
    environment = folder / "environment.yml"
    edited = environment.read_text().replace("dependencies:", "  - nodefaults\ndependencies:")
    environment.write_text(edited)
    assert inputs(folder).sha256 == lock_inputs.sha256
    assert run("lock", "rendered").stdout.startswith("already locked")


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


def test_render_all_check_with_dry_run_is_still_a_check(lab: Path) -> None:
    rows = outcomes(run("render", "--all", "--check", "--dry-run", "--json"))
    assert {name: status for name, (status, _) in rows.items()} == {
        "edited": "differs",
        "new": "differs",
        "rendered": "current",
        "wrong": "failed",
    }
