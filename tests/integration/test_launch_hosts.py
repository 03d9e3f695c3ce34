"""Jobs on plain hosts over ssh: started, listed, read and canceled; nothing half started."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Home
from tests.integration.launches import plain_prefix, toy_lab
from tests.integration.ssh_hosts import SshHosts
from tests.integration.waiting import eventually
from tests.results import parse_result

__all__ = ["plain_prefix"]

pytestmark = pytest.mark.sshd


@pytest.fixture(scope="module", autouse=True)
def own_jobs_only() -> Iterator[None]:
    """The hosts share this machine's home: what the jobs leave in it goes."""
    folder = Path.home() / ".local" / "state" / "provision" / "jobs"
    before = set(folder.glob("*"))
    yield
    for path in set(folder.glob("*")) - before:
        shutil.rmtree(path)


@pytest.fixture
def lab(tmp_path: Path, ssh_hosts: SshHosts) -> Home:
    return toy_lab(tmp_path, ssh_hosts.environment)


def launched(lab: Home, on: str, *words: str) -> str:
    result = lab.run("launch", "toy", "--on", on, *words)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[0].removeprefix("submitted: job ")


def states(lab: Home, on: str, job: str) -> dict[str, str]:
    """The state of each host's part of a job."""
    result = lab.run("jobs", "list", "--on", on, "--json")
    assert result.returncode == 0, result.stderr
    rows = parse_result(result.stdout)["jobs"]
    return {row["where"]: row["state"] for row in rows if row["id"] == job}


def test_hosts_work_together_and_their_logs_are_read(
    lab: Home, plain_prefix: Path, ssh_hosts: SshHosts
) -> None:
    on = "ssh:h[1-3]"
    text = 'echo "$NODE_RANK of $NNODES on $(hostname) at $MASTER_ADDR"'
    job = launched(lab, on, "--prefix", str(plain_prefix), "--", "sh", "-c", text)
    done = dict.fromkeys(("h1", "h2", "h3"), "done")
    eventually(lambda: states(lab, on, job) == done)
    log = lab.run("jobs", "log", job, "--on", on).stdout
    address = ssh_hosts["h1"].address
    for number in range(3):
        assert f"{number} of 3 on h{number + 1} at {address}\n" in log
    assert log.index("==> h1") < log.index("==> h2") < log.index("==> h3")
    assert "3 nodes compared: alike" in log


HANGS = """\
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    print("one waits", flush=True)
    while time: time.sleep(1)
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.exhaustive
@pytest.mark.torch
def test_a_job_that_hangs_is_explained_and_dead_nodes_are_named(
    lab: Home, runtime_python: Path
) -> None:
    (lab.root / "work" / "train.py").write_text(HANGS)
    prefix = ("--prefix", str(runtime_python.parent.parent), "--set", "ranks=1")
    job = launched(lab, "ssh:h[1-2]", *prefix, "--", "train.py")
    log = ("jobs", "log", job, "--on", "ssh:h[1-2]")
    eventually(lambda: "one waits" in lab.run(*log).stdout)
    page = lab.run("why", job, "--on", "ssh:h[1-2]")
    assert page.returncode == 1, page.stdout + page.stderr
    assert "rank 1 on h2" in page.stdout and "train.py:5" in page.stdout, page.stdout
    nodes = lab.root / "work" / "nodes.yml"
    nodes.write_text('schema: 1\ngroups:\n  desks: {from: ssh, hosts: "h[1-2],nosuch"}\n')
    page = lab.run("why", job, "--on", "desks", "--inventory", str(nodes))
    assert page.returncode == 1 and "nosuch: unknown" in page.stdout, page.stdout + page.stderr
    assert lab.run("jobs", "cancel", job, "--on", "ssh:h[1-2]").returncode == 0


def test_a_job_is_canceled_on_all_hosts(lab: Home, plain_prefix: Path) -> None:
    on = "ssh:h[4-5]"
    job = launched(lab, on, "--prefix", str(plain_prefix), "--", "sleep", "600")
    running = dict.fromkeys(("h4", "h5"), "running")
    eventually(lambda: states(lab, on, job) == running)
    assert lab.run("jobs", "cancel", job, "--on", on).returncode == 0
    canceled = dict.fromkeys(("h4", "h5"), "canceled")
    eventually(lambda: states(lab, on, job) == canceled)
    again = lab.run("jobs", "cancel", job, "--on", on)
    assert again.returncode == 3
    assert f"runs a job {job}" in again.stderr


def test_nothing_starts_where_another_user_can_change_the_environment(
    lab: Home, plain_prefix: Path, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    """On one host of two: in a folder that every user may write to."""
    prefix, ran = "/opt/shared/toy", tmp_path / "ran"
    program = f"#!/bin/sh\ntouch {shlex.quote(str(ran))}\n"
    for name in ("h1", "h2"):
        script = f"mkdir -p {prefix}/bin; printf %s {shlex.quote(program)} > {prefix}/bin/python"
        ssh_hosts[name].run("sh", "-c", f"{script}; chmod 755 {prefix}/bin/python")
    ssh_hosts["h2"].run("chmod", "777", "/opt/shared")
    try:
        words = ("launch", "toy", "--on", "ssh:h[1-2]", "--prefix", prefix, "--", "true")
        result = lab.run(*words)
    finally:
        for name in ("h1", "h2"):
            ssh_hosts[name].run("rm", "-r", "/opt/shared")
    assert (result.returncode, result.stdout) == (1, "")
    assert "h2: every user may write to /opt/shared (mode 777)" in result.stderr
    assert not ran.exists()


@pytest.mark.exhaustive
def test_a_host_that_does_not_start_ends_the_others(
    lab: Home, plain_prefix: Path, ssh_hosts: SshHosts
) -> None:
    ssh_hosts.stop_sshd(ssh_hosts["h8"])
    try:
        result = lab.run(
            *("launch", "toy", "--on", "ssh:h[6-8]", "--prefix", str(plain_prefix)),
            *("--", "sleep", "600"),
        )
    finally:
        ssh_hosts.start_sshd(ssh_hosts["h8"])
    assert (result.returncode, result.stdout) == (1, "")
    assert "The job did not start on h8: " in result.stderr
    rows = parse_result(lab.run("jobs", "list", "--on", "ssh:h[6-7]", "--json").stdout)["jobs"]
    ours = [row["id"] for row in rows if row["id"].startswith("sleep-")]
    eventually(
        lambda: all("running" not in states(lab, "ssh:h[6-7]", job).values() for job in ours),
    )


@pytest.mark.exhaustive
def test_ctrl_c_while_a_host_starts_ends_the_others(
    lab: Home, plain_prefix: Path, ssh_hosts: SshHosts
) -> None:
    """The environment of the last host is on a file system that hangs."""
    on, prefix, others = "ssh:h[6-8]", "/opt/hanging/toy", "ssh:h[6-7]"
    python = shlex.quote(str(plain_prefix / "bin" / "python"))
    for name in ("h6", "h7", "h8"):
        hangs = 'case "$*" in *--detach*) sleep 600;; esac\n' if name == "h8" else ""
        program = f'#!/bin/sh\n{hangs}exec {python} "$@"\n'
        script = f"mkdir -p {prefix}/bin; printf %s {shlex.quote(program)} > {prefix}/bin/python"
        ssh_hosts[name].run("sh", "-c", f"{script}; chmod 755 {prefix}/bin/python")
    words = ("--prefix", prefix, "--set", "job_name=held", "--", "sleep", "600")
    child = lab.start("launch", "toy", "--on", on, *words)
    try:
        running = dict.fromkeys(("h6", "h7"), "running")
        eventually(lambda: states(lab, others, "held") == running, daemons=[child])
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        for name in ("h6", "h7", "h8"):
            ssh_hosts[name].run("pkill", "-f", f"^/bin/sh {prefix}/bin/python", check=False)
            ssh_hosts[name].run("rm", "-r", "/opt/hanging")
    assert (child.returncode, out) == (130, ""), err
    canceled = dict.fromkeys(("h6", "h7"), "canceled")
    eventually(lambda: states(lab, others, "held") == canceled)
    assert states(lab, on, "held") == canceled


def test_an_environment_that_a_host_lacks_is_named(lab: Home) -> None:
    result = lab.run("launch", "toy", "--on", "ssh:h1", "--prefix", "/none", "--", "true")
    assert result.returncode == 1
    assert "h1: there is no /none" in result.stderr


def test_a_job_on_this_machine(lab: Home, plain_prefix: Path) -> None:
    job = launched(lab, "local", "--prefix", str(plain_prefix), "--", "sh", "-c", "pwd; exit 4")
    followed = lab.run("jobs", "log", "--follow", job, "--on", "local")
    assert (followed.returncode, states(lab, "local", job)) == (1, {"local": "failed"})
    log = lab.run("jobs", "log", job, "--on", "local").stdout
    assert log == followed.stdout
    assert f"{lab.root}/work\n" in log
    assert "the command ended with status 4" in log
