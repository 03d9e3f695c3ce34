"""Which project a command works in, and whose products the data folder has."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from provision.core.errors import InvalidSpec
from provision.core.paths import Folders, default_folders
from provision.core.prefix_registry import list_prefixes, record_project
from provision.core.project import find_envs
from provision.environment import kernel, marker
from provision.environment.marker import Marker
from provision.workflow.context import Context
from provision.workflow.environments import environments, environments_of_all
from provision.workflow.project import settle
from tests.progress import Recorder


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("PROVISION_ENVS", raising=False)
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def describe(root: Path, *names: str, lock: str = "locked") -> Path:
    """A project with these environments, which have a lock and no more."""
    for name in names:
        folder = root / "envs" / name
        folder.mkdir(parents=True)
        (folder / "conda-lock.yml").write_text(lock)
        (folder / "spec.yml").write_text('torch: "2.3"\ncpu: true\n')
    return root


def install(path: Path, root: Path, name: str = "dev", lock: str = "locked") -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    sha256 = hashlib.sha256(lock.encode()).hexdigest()
    marker.write(path, Marker(name=name, folder=str(root / "envs" / name), lock_sha256=sha256))
    return path


def folders_of(root: Path) -> Folders:
    return default_folders(root / "envs")


def provision(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from provision.cli.main import main; main()", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def project_notes(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of standard error, but for the one that such a prefix is without our runtime."""
    return [line for line in done.stderr.splitlines() if "is not up to date" not in line]


def test_two_projects_have_an_environment_of_one_name(home: Path) -> None:
    a, b = describe(home / "a", "dev"), describe(home / "b", "dev", lock="another")
    record_project(folders_of(a))
    path = install(folders_of(a).prefixes / "dev", a)
    kernel.install(marker.find("dev", path) or pytest.fail(), "A")
    refused = provision(b, "run", "dev", "--", "python", "-c", "print(1)")
    assert (refused.returncode, refused.stdout) == (9, "")
    assert f"--envs {a / 'envs'}" in refused.stderr
    other = install(folders_of(b).prefixes / "dev", b, lock="another")
    record_project(folders_of(b))
    installed = marker.find("dev", other)
    assert installed is not None
    second, _ = kernel.install(installed, "B")
    assert second.name.startswith("dev-")
    assert [
        row.kernel for row in environments(Context(folders=folders_of(b), progress=Recorder()))
    ] == [True]
    assert kernel.find("dev", other).name == second.name
    assert kernel.find("dev", path).name == "dev"
    where = "import sys; print(sys.argv)"
    for root in (a, b):
        shown = provision(root, "run", "--dry-run", "python", "-c", where)
        assert (shown.returncode, project_notes(shown)) == (0, [])
    rows = environments_of_all(Context(folders=folders_of(b), progress=Recorder()))
    assert [(row.project, row.name) for row in rows] == [(b, "dev"), (a, "dev")]


def test_a_project_that_moved_keeps_its_environments(home: Path) -> None:
    a = describe(home / "a", "dev")
    record_project(folders_of(a))
    path = install(folders_of(a).prefixes / "dev", a)
    moved = a.rename(home / "moved")
    result = provision(moved, "run", "python", "-c", "print(5)")
    assert (result.returncode, result.stdout) == (0, "5\n")
    assert f"this project was moved from {a / 'envs'}" in result.stderr
    assert project_notes(provision(moved, "run", "python", "-c", "print(5)")) == []
    assert folders_of(moved).prefixes / "dev" == path
    assert (marker.read(path) or pytest.fail()).folder == str(moved / "envs" / "dev")
    # Another project in the former folder has products of its own.
    describe(home / "a", "dev")
    assert settle(folders_of(a)) == (folders_of(a), [])
    assert folders_of(a).prefixes != folders_of(moved).prefixes


@pytest.mark.parametrize("case", ["copy", "another lock"])
def test_what_did_not_move_is_separate(home: Path, case: str) -> None:
    a = describe(home / "a", "dev")
    record_project(folders_of(a))
    install(folders_of(a).prefixes / "dev", a)
    b = describe(home / "b", "dev", lock="locked" if case == "copy" else "another")
    if case != "copy":
        a.rename(home / "gone")
    folders, notes = settle(folders_of(b))
    assert (list_prefixes(folders), notes) == ({}, [])


def test_the_project_is_found_from_below(home: Path) -> None:
    a = describe(home / "a", "dev")
    below = a / "src" / "deep"
    below.mkdir(parents=True)
    assert find_envs(below) == a / "envs"
    (home / "envs").mkdir()
    (home / "other").mkdir()
    assert find_envs(home / "other") is None  # a folder of that name, and no environment in it
    (a / "src" / "pyproject.toml").write_text('[tool.provision]\nenvs = "conf/envs"\n')
    assert find_envs(below) == a / "src" / "conf" / "envs"
    (below / ".git").mkdir()
    assert find_envs(below) is None


@pytest.mark.parametrize(
    "text", ["default = 3", 'defualt = "x"', 'envs = "../x"', 'envs = "/x"', "default", 'envs = ""']
)
def test_wrong_settings_of_a_project_are_refused(home: Path, text: str) -> None:
    describe(home / "a", "dev")
    (home / "a" / "provision.toml").write_text(text)
    with pytest.raises(InvalidSpec, match=r"provision\.toml"):
        find_envs(home / "a")
    result = provision(home / "a", "run", "true")
    assert (result.returncode, "provision.toml" in result.stderr) == (3, True)


def test_outside_of_projects_a_name_is_found_in_its_project(home: Path) -> None:
    a = describe(home / "a", "dev")
    record_project(folders_of(a))
    install(folders_of(a).prefixes / "dev", a)
    outside = home / "outside"
    outside.mkdir()
    for words in (["run", "dev", "python"], ["run", "dev", "--", "python"]):
        result = provision(outside, *words, "-c", "print(5)")
        assert (result.returncode, result.stdout) == (0, "5\n")
        assert f"dev of the project {a}" in result.stderr
    assert provision(outside, "kernel", "add", "dev").stderr.startswith("  dev of the project")
    b = describe(home / "b", "dev")
    record_project(folders_of(b))
    install(folders_of(b).prefixes / "dev", b)
    result = provision(outside, "run", "dev", "python", "-c", "print(5)")
    assert (result.returncode, "Several projects" in result.stderr) == (2, True)


def test_the_list_names_the_project(home: Path) -> None:
    a, b = describe(home / "a", "dev"), describe(home / "b", "lab")
    record_project(folders_of(b))
    install(folders_of(b).prefixes / "lab", b, "lab")
    rows = json.loads(provision(a, "env", "list", "--json").stdout)["environments"]
    assert [(row["project"], row["name"]) for row in rows] == [(str(a), "dev")]
    listed = provision(a, "env", "list", "--all").stdout
    assert "~/a" in listed and "~/b" in listed


def test_clean_looks_at_all_projects(home: Path) -> None:
    a, b = describe(home / "a", "dev", "gone"), describe(home / "b", "gone")
    record_project(folders_of(a))
    paths = [install(folders_of(a).prefixes / name, a, name) for name in ("dev", "gone")]
    shutil.rmtree(a / "envs" / "gone")
    result = provision(b, "clean", "--only", "environment", "--yes")
    assert result.returncode == 0, result.stderr
    assert [path.exists() for path in paths] == [True, False]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_project_above_is_of_somebody_trusted(home: Path, is_known: bool) -> None:
    """As in /tmp, where anybody can make a folder `envs`."""
    a = describe(home / "a", "dev")
    below = a / "src"
    below.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(a / "envs", 4321, 4321)
    if is_known:
        os.chown(below, 4321, 4321)
    assert find_envs(below) == (a / "envs" if is_known else None)
    assert find_envs(a) == a / "envs"
