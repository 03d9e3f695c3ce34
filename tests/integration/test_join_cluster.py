"""`provision join` against the sample lab on real parts: ssh hosts, real torch, and the commands that it
ends with on a Slurm of four nodes. And what the lab's clusters can do wrong.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.environment import runtime_package
from tests.integration.conftest import environment_folder
from tests.integration.short_folders import short_folder
from tests.integration.slurm_cluster import SlurmCluster
from tests.integration.smoke_process import PYTHON
from tests.integration.ssh_hosts import SshHosts
from tests.integration.test_git import run_git
from tests.integration.test_join import PROVISION, Member, make_member, notes
from tests.node_stores import pack_record
from tests.programs import write_program
from tests.results import parse_result

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.torch,
    pytest.mark.slurm,
    pytest.mark.sshd,
    pytest.mark.needs("git"),
]

PREFIX = Path(PYTHON).parent.parent
SAMPLE = Path(__file__).parent.parent.parent / "examples" / "lab"


@dataclass(frozen=True, kw_only=True)
class JoinedLab:
    """The sample lab with the tests' hosts and environment, and a member who joined it."""

    folder: Path
    member: Member
    name: str
    first: subprocess.CompletedProcess[str]


def ship(store: Path, name: str) -> Path:
    """The tests' environment as a pack's tree in a store, of hard links where that can be."""
    key = f"{name}-0123456789ab"
    tree = store / "envs" / key
    tree.parent.mkdir(parents=True)
    if subprocess.run(["cp", "-al", PREFIX, tree], capture_output=True).returncode:
        shutil.rmtree(tree, ignore_errors=True)
        subprocess.run(["cp", "-a", PREFIX, tree], check=True)
    runtime_package.install(tree, runtime_package.load())
    marker = tree / "conda-meta" / "provision.state"
    content = json.loads(marker.read_text())
    marker.unlink()
    marker.write_text(json.dumps({**content, "folder": str(tree), "pack": key}))
    (store / name).symlink_to(f"envs/{key}")
    record = pack_record(tree, name, key)
    (store / "images").mkdir()
    (store / "images" / f"{key}.json").write_text(json.dumps(record))
    return tree


def write_lab(folder: Path, environment: Path, root: Path, hosts: SshHosts) -> None:
    """The sample, with names and folders that exist here."""
    shutil.copytree(SAMPLE, folder)
    shutil.rmtree(folder / "envs" / "train")
    shutil.copytree(environment, folder / "envs" / environment.name)
    text = (folder / "lab.yml").read_text()
    head, _, rest = text.partition("mirrors:")
    text = head + rest[rest.index("# Environments") :]
    replacements = {
        "login[1-2].vision.example": "h[1-2]",
        "/scratch/": f"{root}/scratch/",
        "  train:": f"  {environment.name}:",
        "contact:": "known_hosts: known_hosts\ncontact:",
    }
    for before, after in replacements.items():
        assert before in text
        text = text.replace(before, after)
    (folder / "lab.yml").write_text(text)
    inventory = (folder / "nodes.yml").read_text()
    inventory = inventory.replace("desk[1-2]", "h[3-4]").replace("/opt/provision", f"{root}/store")
    (folder / "nodes.yml").write_text(inventory)
    shutil.copy(hosts.config.parent / "known_hosts", folder / "known_hosts")


@pytest.fixture(scope="module")
def joined(ssh_hosts: SshHosts, slurm_session: SlurmCluster) -> Iterator[JoinedLab]:
    with short_folder("join") as root:
        yield join_lab(root, ssh_hosts, slurm_session)


def join_lab(root: Path, ssh_hosts: SshHosts, slurm_session: SlurmCluster) -> JoinedLab:
    environment = environment_folder(PREFIX)
    ship(root / "store", environment.name)
    write_lab(root / "lab", environment, root, ssh_hosts)
    run_git(root / "lab", "init", "-q", "-b", "main")
    run_git(root / "lab", "add", "-A")
    run_git(root / "lab", "commit", "-q", "-m", "the lab")
    tools = ssh_hosts.environment["PATH"].partition(":")[0]
    member = make_member(
        root / "member",
        PATH=f"{tools}:{os.environ['PATH']}",
        SLURM_CONF=slurm_session.environment["SLURM_CONF"],
    )
    first = member.run("join", (root / "lab").as_uri())
    return JoinedLab(folder=root / "lab", member=member, name=environment.name, first=first)


def test_one_command_from_an_empty_home_to_a_passed_job(joined: JoinedLab) -> None:
    assert joined.first.returncode == 0, joined.first.stdout + joined.first.stderr
    for line in (
        "h[1-2]: ssh lets you in",
        f"{joined.name}: the smoke test here: pass",
        "vision: you are ready.",
    ):
        assert line in joined.first.stdout
    before = joined.member.listing()
    status, report = joined.member.join()
    assert (status, report["open"]) == (0, []), report
    assert not any(row["changed"] for row in report["steps"])
    assert joined.member.listing() == before
    [row] = [row for row in report["steps"] if row["step"] == "first-job"]
    assert [note["message"] for note in row["notes"]] == [
        f"{joined.name} passed the smoke test here",
    ]
    # The command that join ends with, as it is printed.
    [test] = [command for command in report["commands"] if "provision smoke" in command]
    tested = joined.member.run(*shlex.split(test)[1:])
    assert tested.returncode == 0, tested.stdout + tested.stderr
    # The test is the member's own, and nothing of it lies in the clone.
    passport = parse_result(joined.member.run("passport", "show", joined.name, "--json").stdout)
    assert passport["outdated"] == "" and passport["smoke"]["prefix"]["elsewhere"] == ""
    assert passport["smoke_nodes"]["verdict"] in ("pass", "warn")
    # Another machine with the same home has not passed.
    result = subprocess.run(
        [
            *("unshare", "--uts", "sh", "-c", 'hostname gpu07; exec "$@"', "sh"),
            *(PROVISION, "join", "--dry-run", "--json"),
        ],
        cwd=joined.member.root,
        env=joined.member.env,
        capture_output=True,
        text=True,
    )
    pending = notes(parse_result(result.stdout), "first-job")
    assert any("would run `provision smoke" in note for note in pending)


def other_ssh(folder: Path, command: str) -> str:
    """PATH with an ssh that knows the hosts by other settings."""
    folder.mkdir()
    write_program(folder / "ssh", f'#!/bin/sh\nexec {command} "$@"\n')
    return f"{folder}:{os.environ['PATH']}"


def test_host_keys_that_nobody_has_accepted(
    joined: JoinedLab, ssh_hosts: SshHosts, short_path: Path
) -> None:
    real = ssh_hosts.environment["PATH"].partition(":")[0]
    command = f"{real}/ssh -oUserKnownHostsFile={short_path / 'none'}"
    path = other_ssh(short_path / "bin", command)
    status, report = joined.member.join("--dry-run", PATH=path)
    assert (status, report["open"]) == (1, ["ssh"]), report
    problems = notes(report, "ssh")
    assert [problem.partition(" (")[0] for problem in problems] == [
        f"open: {host}: ssh does not know the host's key" for host in ("h1", "h2")
    ]
    assert all("known_hosts >> ~/.ssh/known_hosts" in problem for problem in problems)


def test_a_login_host_is_down(joined: JoinedLab, ssh_hosts: SshHosts) -> None:
    host = ssh_hosts["h2"]
    ssh_hosts.stop_sshd(host)
    try:
        status, report = joined.member.join("--dry-run")
    finally:
        ssh_hosts.start_sshd(host)
    assert (status, report["open"]) == (1, ["ssh"]), report
    [problem] = notes(report, "ssh")
    assert problem.startswith("open: h2: ") and "again later" in problem
    assert joined.member.join("--dry-run")[0] == 0


@pytest.mark.exhaustive
def test_no_key_and_one_that_is_not_known_yet(
    joined: JoinedLab, ssh_hosts: SshHosts, short_path: Path
) -> None:
    lines = ssh_hosts.config.read_text().splitlines(keepends=True)
    config = short_path / "config"
    config.write_text("".join(line for line in lines if "IdentityFile" not in line))
    real = shutil.which("ssh", path="/usr/bin:/bin")
    path = other_ssh(short_path / "bin", f"{real} -F {config}")
    own = make_member(short_path / "member", **{**joined.member.variables, "PATH": path})
    _, report = own.join(str(joined.folder), "--dry-run")
    assert all("Make a key: ssh-keygen -t ed25519" in note for note in notes(report, "ssh"))
    assert not (own.home / ".ssh").exists()
    key = own.home / ".ssh" / "id_ed25519"
    key.parent.mkdir(mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_name("id_ed25519.pub").read_text().strip()
    _, report = own.join(str(joined.folder), "--dry-run")
    assert all(public in note for note in notes(report, "ssh"))
    key.chmod(0o644)
    _, report = own.join(str(joined.folder), "--dry-run")
    assert any(f"chmod 600 {key}" in note for note in notes(report, "ssh"))
