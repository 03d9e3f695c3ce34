"""`doctor` on this machine: each real cause gives exactly its finding, a clean machine none, and what
hangs costs one probe."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import provision_runtime
from provision_runtime.facts import limits
from tests.integration import doctor_causes
from tests.integration.doctor_causes import CASES, Case, Run

PATIENCE_S = 300  # a pipe that a probe holds open would never end
DOCTOR = [sys.executable, "-S", str(Path(provision_runtime.__file__).parent), "doctor", "--json"]
NAMESPACES = ["unshare", "--mount", "--uts", "--net"]
pytestmark = pytest.mark.mounts


def examine(run: Run) -> dict[str, Any]:
    """Doctor's answer, in an environment without any of the tester's own settings."""
    variables = {"PATH": os.defpath, "HOME": str(run.home), "LANG": "C.UTF-8", **run.variables}
    command = [*DOCTOR, *run.arguments]
    if run.shell:
        network = NAMESPACES if "ip link" in run.shell else NAMESPACES[:-1]
        command = [*network, "sh", "-c", f'set -e; {run.shell}; exec "$@"', "sh", *command]
    child = subprocess.run(
        command,
        env=variables,
        cwd=run.folder,
        capture_output=True,
        text=True,
        preexec_fn=run.set_limits,
        check=False,
        timeout=PATIENCE_S,
    )
    assert child.stdout, child.stderr
    document: dict[str, Any] = json.loads(child.stdout)
    assert child.returncode == (1 if document["verdict"] in ("fail", "unknown") else 0)
    return document


def examine_all(run: Run) -> dict[str, Any]:
    """The answer without a late probe, which on a busy machine is a right finding."""
    for _ in range(10):
        document = examine(run)
        if "probe-late" not in ids(document):
            break
    return document


def ids(document: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in document["findings"]}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """In a cgroup of its own where ours has had processes killed for memory, as doctor would say."""
    (tmp_path / "home").mkdir()
    with contextlib.ExitStack() as stack:
        group = None
        if any(each["oom_kills"] for each in limits.memory_groups()):
            group = stack.enter_context(doctor_causes.cgroup("memory", {}, {}))
        yield Run(tmp_path, group=group)


def test_a_clean_machine_gives_no_finding(run: Run) -> None:
    with contextlib.ExitStack() as stack:
        doctor_causes.healthy_environment(run, stack)
        document = examine_all(run)
    assert document["findings"] == []
    assert document["verdict"] == "pass"


def test_a_full_disk_that_is_only_read_gives_no_finding(run: Run) -> None:
    with contextlib.ExitStack() as stack:
        doctor_causes.full_read_only_disk(run, stack)
        assert examine_all(run)["findings"] == []


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.cause.__name__, marks=case.marks) for case in CASES]
)
def test_a_real_cause_gives_exactly_its_finding(case: Case, run: Run) -> None:
    with contextlib.ExitStack() as stack:
        case.cause(run, stack)
        document = examine_all(run)
    assert ids(document) == {case.id}
    for finding in document["findings"]:
        assert finding["evidence"] and finding["advice"]


@pytest.mark.parametrize("is_verb", [True, False], ids=["provision doctor", "the runtime"])
def test_a_null_device_that_cannot_be_opened_is_named_once(run: Run, is_verb: bool) -> None:
    """Not even by root: the disk of /dev is mounted with nodev. No probe fails for it."""
    folder = shlex.quote(str(run.folder))
    script = (
        f"set -e; mount -t tmpfs -o nodev tmpfs {folder}/home; mknod -m 666 {folder}/home/null c 1 3;"
        f' mount --bind {folder}/home/null /dev/null; exec "$@"'
    )
    main = "from provision.cli.main import main; main()"
    verb = [sys.executable, "-c", main, "doctor", "--json"]
    child = subprocess.run(
        [*NAMESPACES[:2], "sh", "-c", script, "sh", *(verb if is_verb else DOCTOR)],
        env={"PATH": os.defpath, "HOME": str(run.home)},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        preexec_fn=run.set_limits,
        check=False,
    )
    document = json.loads(child.stdout)
    assert [finding["id"] for finding in document["findings"]] == ["null-device"], child.stderr
    assert "mknod" in document["findings"][0]["command"]


def test_nvidia_smi_that_hangs_costs_one_probe(run: Run) -> None:
    """And doctor ends although a process is left that no signal to the probe reaches: whoever reads
    its output sees the end, since nothing that hangs holds the pipe."""
    number = run.folder / "pid"
    file = shlex.quote(str(number))
    text = f"#!/bin/sh\ntrap '' TERM\nsetsid sleep 1000 &\necho $! > {file}\nwait\n"
    doctor_causes.tool(run, "nvidia-smi", text)
    document = examine(run)
    os.kill(int(number.read_text()), signal.SIGKILL)  # it is still there
    assert [finding["id"] for finding in document["findings"]] == ["probe-late"]
    late = next(item for item in document["findings"] if item["id"] == "probe-late")
    assert late["message"].endswith(" s: GPUs")


@pytest.mark.fuse
def test_a_file_server_that_never_answers_costs_one_probe(run: Run) -> None:
    """A FUSE file system whose server reads no request: whoever asks it waits in the kernel."""
    point = run.folder / "dead"
    point.mkdir()
    run.variables["HF_HOME"] = str(point)
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    mount = ["mount", "-i", "-t", "fuse", "-o", options, "dead", str(point)]
    subprocess.run(mount, check=True, pass_fds=[server])
    try:
        document = examine(run)
    finally:
        os.close(server)  # whoever waits gets an error now
        subprocess.run(["umount", "-l", str(point)], check=True)
    assert [finding["id"] for finding in document["findings"]] == ["probe-late"]
    late = next(item for item in document["findings"] if item["id"] == "probe-late")
    assert late["message"].endswith(" s: disks")
    assert document["findings"][0]["evidence"][0]["value"].startswith(("fuse_", "request_wait_"))


@pytest.mark.needs("ssh-keygen")
def test_fix_prints_commands_and_changes_nothing(run: Run) -> None:
    with contextlib.ExitStack() as stack:
        doctor_causes.open_key(run, stack)
    key = run.home / ".ssh" / "id_ed25519"
    variables = {"PATH": os.defpath, "HOME": str(run.home)}
    child = subprocess.run(
        [*DOCTOR[:-1], "--fix"], env=variables, capture_output=True, text=True, check=False
    )
    assert f"chmod 600 {shlex.quote(str(key))}" in child.stdout.splitlines()
    assert key.stat().st_mode & 0o777 == 0o644


@pytest.mark.exhaustive
@pytest.mark.index
def test_a_notebook_server_open_to_the_network(run: Run) -> None:
    """A real server on all addresses without a token; its own file with a token, and with a
    loopback address."""
    folder = run.folder / "jupyter"
    subprocess.run(["uv", "venv", "--quiet", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    install = ["uv", "pip", "install", "--quiet", "--python", python, "jupyter_server"]
    subprocess.run(install, check=True)
    with doctor_causes.notebook_server(run, python) as file:
        assert ids(examine(run)) == {"notebook-open"}
        text = file.read_text()
        for key, open_value, value in (
            ("token", "", "secret"),
            ("hostname", "0.0.0.0", "127.0.0.1"),
        ):
            server = json.loads(text)
            assert server[key] == open_value
            file.write_text(json.dumps({**server, key: value}))
            assert ids(examine(run)) == set()
        file.write_text(text)
    assert ids(examine(run)) == set()  # none runs any more
