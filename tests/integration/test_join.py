"""`provision join` in an empty home: every step, every fault with its real cause, killed anywhere.

The lab's environment is small (this machine's Python and tiny wheels behind the lab's own mirrors),
so its torch is none: nothing here starts it. `test_join_cluster.py` runs a real first job.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faulty import Server
from tests.integration import shared_parts
from tests.integration.short_folders import short_folder
from tests.integration.test_git import refusing_server as refusing_server
from tests.integration.test_git import run_git
from tests.integration.test_mirrors import NAME, WHEELS
from tests.integration.test_mirrors import locked as locked
from tests.integration.test_mirrors import world as world
from tests.node_stores import pack_record
from tests.results import parse_result

pytestmark = [pytest.mark.index, pytest.mark.needs("git")]

PROVISION = str(Path(sys.executable).parent / "provision")
LAB = """\
schema: 1
name: small-lab
contact: the admins
paths:
  data: {scratch}/{{user}}/data
  cache: {scratch}/{{user}}/cache
  tmp: {scratch}/{{user}}/tmp
mirrors:
  - lab={place}/lab
  - pypi={place}/simple
  - {wheels}={place}/files
environments:
  {name}:
policy: {{test_here: false}}
"""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A user with an empty home, and a scratch folder that the lab gives."""

    root: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def env(self) -> dict[str, str]:
        foreign = ("PROVISION_", "JUPYTER_", "XDG_", "UV_", "PIP_", "PYTHON", "TMPDIR", "SSH_")
        own = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        own |= {
            "HOME": str(self.home),
            "PIP_CONFIG_FILE": os.devnull,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {**own, **self.variables}

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROVISION, *arguments],
            cwd=self.root,
            env={**self.env, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **variables) as child:
            out, err = child.communicate()
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def join(self, *arguments: str, **variables: str) -> tuple[int, dict[str, Any]]:
        """The exit code and the report."""
        result = self.run("join", *arguments, "--json", **variables)
        assert result.stdout, result.stderr
        return result.returncode, parse_result(result.stdout)

    def listing(self) -> dict[str, tuple[int, int, int]]:
        """Every file and folder of home and scratch: mode, size, time of change."""
        rows = {}
        for path in sorted(self.root.rglob("*")):
            status = path.lstat()
            rows[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns)
        return rows


def make_member(root: Path, **variables: str) -> Member:
    member = Member(root=root, variables=variables)
    member.home.mkdir(parents=True)
    return member


def notes(report: Mapping[str, Any], step: str) -> list[str]:
    """`open: message > advice` for each note of a step that is not done."""
    [row] = [row for row in report["steps"] if row["step"] == step]
    return [
        f"{note['status']}: {note['message']} > {note['advice']}"
        for note in row["notes"]
        if note["status"] != "done"
    ]


def write_lab(folder: Path, locked: Path, world: Server, scratch: Path) -> Path:
    (folder / "envs").mkdir(parents=True)
    shutil.copytree(locked, folder / "envs" / NAME)
    (folder / "lab.yml").write_text(
        LAB.format(scratch=scratch, place=world.url, wheels=WHEELS, name=NAME)
    )
    cache = scratch / getpass.getuser() / "cache"
    cache.mkdir(parents=True)
    (cache / "byte-code").symlink_to(shared_parts.byte_code())
    (cache / "conda-packages").symlink_to(shared_parts.conda_packages())
    return folder


@pytest.fixture
def member() -> Iterator[Member]:
    with short_folder("join") as folder:
        yield make_member(folder / "member")


@pytest.fixture
def lab_to_install(tmp_path: Path, locked: Path, world: Server, member: Member) -> Path:
    """A lab that ships nothing: joining installs its environment, which takes seconds."""
    return write_lab(tmp_path / "lab", locked, world, member.scratch)


@pytest.fixture(scope="module")
def store(locked: Path, world: Server) -> Iterator[Path]:
    """The store of this machine, with the lab's environment as a pack's tree."""
    with short_folder("shipped") as root:
        yield install_store(root, locked, world)


def install_store(root: Path, locked: Path, world: Server) -> Path:
    shipped = root / "store" / "envs" / f"{NAME}-0123456789ab"
    shipped.parent.mkdir(parents=True)
    with short_folder("join") as place:
        builder = make_member(place / "builder")
        folder = write_lab(root / "lab", locked, world, builder.scratch)
        status, report = builder.join(str(folder))
        assert status == 0, report
        [built] = builder.scratch.glob(f"*/data/projects/*/prefixes/{NAME}")
        built.rename(shipped)
    marker = shipped / "conda-meta" / "provision.state"
    content = json.loads(marker.read_text())
    marker.unlink()
    marker.write_text(json.dumps({**content, "folder": str(shipped), "pack": shipped.name}))
    (root / "store" / NAME).symlink_to(shipped)
    record = pack_record(shipped, NAME, shipped.name)
    (root / "store" / "images").mkdir()
    (root / "store" / "images" / f"{shipped.name}.json").write_text(json.dumps(record))
    return root / "store"


@pytest.fixture
def lab(lab_to_install: Path, store: Path) -> Path:
    """A lab that shipped its environment to this machine."""
    (lab_to_install / "nodes.yml").write_text(f"schema: 1\ndefaults: {{path: {store}}}\n")
    return lab_to_install


@pytest.fixture
def address(lab: Path) -> str:
    """The lab as a git repository."""
    return as_repository(lab)


@pytest.fixture
def address_to_install(lab_to_install: Path) -> str:
    return as_repository(lab_to_install)


def as_repository(folder: Path) -> str:
    run_git(folder, "init", "-q", "-b", "main")
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-q", "-m", "the lab")
    return folder.as_uri()


def test_from_an_empty_home_to_a_second_run_that_changes_nothing(
    member: Member, address_to_install: str
) -> None:
    before = member.listing()
    status, report = member.join(address_to_install, "--dry-run")
    assert status == 1
    assert report["open"] == ["lab", "folders", "environments", "kernels"]
    assert member.listing() == before

    status, report = member.join(address_to_install)
    assert (status, report["open"]) == (0, []), report
    assert report["commands"][-1] == f"provision notebook {NAME}"
    assert all(row["status"] == "done" for row in report["steps"]), report
    kernel = json.loads(
        (member.home / f".local/share/jupyter/kernels/{NAME}/kernel.json").read_text()
    )
    python = Path(kernel["argv"][0])
    assert python.is_relative_to(member.scratch)
    assert subprocess.run([python, "-c", "import torch, ipykernel"], check=False).returncode == 0

    before = member.listing()
    status, report = member.join()
    assert status == 0
    assert not any(row["changed"] for row in report["steps"])
    assert member.listing() == before
    assert member.join("--dry-run")[0] == 0
    assert member.listing() == before

    # Other verbs know the lab from anywhere.
    listed = parse_result(member.run("env", "list", "--json").stdout)
    assert [row["name"] for row in listed["environments"]] == [NAME]
    assert member.run("env", "diff", NAME).returncode == 0


def test_a_new_commit_of_the_lab_reaches_its_members(
    member: Member, lab: Path, address: str
) -> None:
    assert member.join(address)[0] == 0
    text = (lab / "lab.yml").read_text()
    (lab / "lab.yml").write_text(text.replace("the admins", "room 3"))
    run_git(lab, "commit", "-q", "-a", "-m", "we moved")
    status, report = member.join("--dry-run")
    assert (status, report["open"]) == (1, ["lab"])
    status, report = member.join()
    assert status == 0
    assert report["contact"] == "room 3"


@pytest.mark.exhaustive
def test_the_origin_is_away_later(member: Member, lab: Path, address: str) -> None:
    assert member.join(address)[0] == 0
    lab.rename(lab.with_name("moved"))
    status, report = member.join()
    assert status == 0
    [note] = notes(report, "lab")
    assert note.startswith("warning: the earlier clone is used: ")


def test_a_members_own_settings_go_before_the_labs(member: Member, lab: Path) -> None:
    own = member.home / ".config" / "provision"
    own.mkdir(parents=True)
    (own / "settings.yml").write_text(f"data: {member.root / 'mine'}\n")
    status, _ = member.join(str(lab))
    assert status == 0
    assert (member.root / "mine").is_dir() and not list(member.scratch.glob("*/data"))
    assert (own / "settings.yml").read_text() == f"data: {member.root / 'mine'}\n"


STEPS = 9


@pytest.mark.parametrize("killed_steps", [[1, 6, 8], [2, 3, 4, 5, 7]])
def test_killed_in_each_step(
    member: Member, address_to_install: str, killed_steps: list[int]
) -> None:
    """At the beginning of each step; the next run goes on, and the last is whole."""
    for number in killed_steps:
        with member.start("join", address_to_install) as child:
            assert child.stderr is not None
            for line in child.stderr:
                if line.strip().startswith(f"{number}/{STEPS}"):
                    break
            child.send_signal(signal.SIGKILL)
    status, report = member.join()
    assert (status, report["open"]) == (0, []), report
    before = member.listing()
    assert member.join()[0] == 0
    assert member.listing() == before


@pytest.mark.exhaustive
def test_killed_while_it_clones_and_installs(member: Member, address_to_install: str) -> None:
    for line_part in ("cloning", "installing", "linking"):
        with member.start("join", address_to_install) as child:
            assert child.stderr is not None
            for line in child.stderr:
                if line_part in line:
                    break
            child.send_signal(signal.SIGKILL)
    status, report = member.join(address_to_install)
    assert (status, report["open"]) == (0, []), report


# Faults of the repository


def test_a_private_repository(member: Member, refusing_server: tuple[int, str]) -> None:
    status, url = refusing_server
    result = member.run("join", url)
    assert result.returncode == {401: 8, 404: 3}[status]
    assert {401: "cannot be read", 404: "is not a git repository"}[status] in result.stderr
    assert "join --dry-run" not in result.stderr
    again = member.run("join", "--dry-run")
    assert again.returncode == 3 and "not joined a lab yet" in again.stderr


def test_without_git(member: Member, address: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "ssh", "ssh-add", "env"):
        with contextlib.suppress(TypeError):
            (tools / tool).symlink_to(str(shutil.which(tool)))
    result = member.run("join", address, PATH=str(tools))
    assert result.returncode == 9
    assert "There is no `git`" in result.stderr


def test_a_repository_without_lab_yml(member: Member, lab: Path, address: str) -> None:
    run_git(lab, "rm", "-q", "lab.yml")
    run_git(lab, "commit", "-q", "-m", "no lab")
    result = member.run("join", address)
    assert result.returncode == 3 and "lab.yml" in result.stderr
    assert not list(member.home.rglob("repository"))


# Faults of the home


@contextlib.contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.mark.exhaustive
@pytest.mark.mounts
def test_a_full_home(member: Member, address: str) -> None:
    with tmpfs(member.home, "size=64k"):
        with contextlib.suppress(OSError), (member.home / "large").open("wb") as file:
            file.write(b"x" * 65536)
        result = member.run("join", address)
        assert result.returncode == 11
        assert "The disk is full: " in result.stderr and "du -xh" in result.stderr
        assert not list(member.home.rglob(".probe"))
        (member.home / "large").unlink()
        remount(member.home, "size=64m")
        status, report = member.join(address)
        assert (status, report["open"]) == (0, []), report


@pytest.mark.exhaustive
@pytest.mark.mounts
def test_a_full_scratch(member: Member, address_to_install: str) -> None:
    with tmpfs(member.scratch, "size=3m"):
        status, report = member.join(address_to_install)
        assert status == 1
        assert report["open"] == ["environments", "kernels"]
        [note] = notes(report, "environments")
        assert note.startswith(f"open: {NAME}: ") and "Free now: " in note
        assert not list(member.scratch.glob("*/data/projects/*/prefixes/*"))
        assert (
            parse_result(member.run("join", "--dry-run", "--json").stdout)["open"] == report["open"]
        )
        remount(member.scratch, "size=2g")
        status, report = member.join()
        assert (status, report["open"]) == (0, []), report


@pytest.mark.exhaustive
@pytest.mark.mounts
def test_a_read_only_home(member: Member, address: str) -> None:
    with tmpfs(member.home, "size=64m"):
        remount(member.home, "ro")
        result = member.run("join", address)
        assert result.returncode == 14
        assert "Read-only file system" in result.stderr and "XDG_CONFIG_HOME" in result.stderr
        others = {
            f"XDG_{name}_HOME": str(member.root / name) for name in ("CONFIG", "DATA", "CACHE")
        }
        status, report = member.join(address, **others)
        assert (status, report["open"]) == (1, ["account"]), report
        [note] = notes(report, "account")
        assert "it is mounted read-only" in note
        kernels = member.root / "DATA" / "jupyter" / "kernels"
        assert (kernels / NAME / "kernel.json").is_file()


@pytest.mark.exhaustive
def test_no_folder_on_scratch(member: Member, lab: Path) -> None:
    shutil.rmtree(member.scratch)
    member.scratch.write_text("a file where a folder should be")
    status, report = member.join(str(lab))
    assert status == 1
    assert [note.partition(" cannot be made")[0] for note in notes(report, "folders")] == [
        f"open: {key}: {member.scratch}/{getpass.getuser()}/{key}"
        for key in ("cache", "data", "tmp")
    ]


@pytest.mark.exhaustive
def test_a_folder_for_temporary_files_with_a_long_path(member: Member, lab: Path) -> None:
    text = (lab / "lab.yml").read_text()
    long = member.scratch / ("long" * 20)
    (lab / "lab.yml").write_text(text.replace("/{user}/tmp", f"/{long.name}"))
    status, report = member.join(str(lab))
    assert (status, report["open"]) == (1, ["folders"]), report
    [note] = notes(report, "folders")
    assert "the path is too long" in note and str(long) in note


@pytest.mark.exhaustive
def test_variables_that_come_before_environments(member: Member, lab: Path) -> None:
    code = member.root / "code"
    (code / "mine").mkdir(parents=True)
    _, report = member.join(str(lab), "--dry-run", PYTHONPATH=str(code))
    [variable] = notes(report, "shell")
    assert variable.startswith(f"warning: {code} comes before") and "with mine" in variable


# Faults of environments


@pytest.mark.exhaustive
def test_a_lock_that_is_not_portable(
    member: Member, lab_to_install: Path, tmp_path: Path, world: Server, packaged_python: Path
) -> None:
    """Locked with the Python of another machine: its files are not here."""
    admin = make_member(tmp_path / "admin")
    channels = admin.home / ".local" / "share" / "provision" / "channels"
    shutil.copytree(packaged_python, channels, symlinks=True)
    shutil.rmtree(lab_to_install / "envs" / NAME)
    request = ("--torch", "2.13", "--cpu", "--no-companions", "--python-from", "host")
    mirror = ("--mirror", f"pypi={world.url}/simple")
    result = admin.run("lock", NAME, *request, *mirror, "--envs", str(lab_to_install / "envs"))
    assert result.returncode == 0, result.stderr
    shutil.rmtree(channels)
    status, report = member.join(str(lab_to_install))
    assert status == 1
    [note] = notes(report, "environments")
    assert "its lock is not portable: it holds " in note and "Tell the admins" in note
    check = parse_result(admin.run("lab", "check", str(lab_to_install), "--json").stdout)
    [row] = [row for row in check["problems"] if row["subject"] == f"environments.{NAME}"]
    assert "not portable" in row["message"]


@pytest.mark.exhaustive
def test_a_kernel_of_somebody_elses_name(member: Member, lab: Path) -> None:
    folder = member.home / ".local" / "share" / "jupyter" / "kernels" / NAME
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["mine"]}')
    status, report = member.join(str(lab))
    assert (status, report["open"]) == (1, ["kernels"])
    [note] = notes(report, "kernels")
    assert "was not created by provision" in note and "jupyter kernelspec remove" in note
    assert (folder / "kernel.json").read_text() == '{"argv": ["mine"]}'
    shutil.rmtree(folder)
    assert member.join()[0] == 0


def test_what_was_shipped_is_used_and_never_removed(member: Member, lab: Path, store: Path) -> None:
    """A pack's tree in the store of this machine, by the digest of its lock."""
    shipped = (store / NAME).resolve()
    status, report = member.join(str(lab))
    assert (status, report["open"]) == (0, []), report
    notes = {row["step"]: row["notes"] for row in report["steps"]}
    assert f"{NAME} was shipped to this machine: {shipped}" in notes["environments"][0]["message"]
    assert not list(member.scratch.glob("*/data/projects/*/prefixes/*"))
    removed = member.run("env", "remove", NAME, "--yes")
    assert removed.returncode == 0, removed.stderr
    assert (shipped / "bin" / "python").exists()
