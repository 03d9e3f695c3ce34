"""`provision nodes check` over many simulated nodes, some of which have faults.

Each node is a process on this machine; a script in place of its Python makes the faults.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import clustershell
from provision.cli.console import Console
from provision.cluster.fitness import EnvironmentNeeds
from provision.cluster.inventory import select_nodes
from provision.verbs.nodes import nodes as command
from tests.integration.conftest import Home, make_home
from tests.integration.short_folders import short_folder
from tests.programs import write_program
from tests.results import parse_result

NODES = 24
MANY_NODES = 1000
# All nodes are processes of this machine: more at once make each slow, and it seems late.
FANOUT = 4
TIMEOUT_S = 30.0
# `$PYTHON "$@"` is the node's Python as it should be.
FAULTS = {
    "refused": 'echo "ssh: connect to host $NODE port 22: Connection refused" >&2; exit 255',
    "no-python": 'echo "bash: line 1: python3: command not found" >&2; exit 127',
    "timed-out": "exec sleep 600",
    "killed": "kill -KILL $$",
    "bad-answer": "echo Welcome; exit 0",
    "wrong-arch": 'exec setarch i686 "$PYTHON" "$@"',
    "old-glibc": '"$PYTHON" "$@" | sed -E \'s/"glibc": "[0-9.]+"/"glibc": "2.17"/\'; exit',
    "clock-skew": '"$PYTHON" "$@" | sed -E \'s/"time": [0-9]+/"time": 1000000000/\'; exit',
    "read-only": '"$PYTHON" "$@" | sed -E \'s/"problem": null\\}, "gpus"/'
    '"problem": {"reason": "read-only", "message": "mounted read-only"}}, "gpus"/\'; exit',
    "noise": "printf 'Last login: Monday, and no line end'",
}
# Noise does no harm.
HARMLESS = ("noise",)
# A node that hangs keeps the test waiting; CI has one in test_ship_simulated.
QUICK_FAULTS = [fault for fault in FAULTS if fault != "timed-out"]


@pytest.fixture(scope="module")
def user() -> Iterator[Home]:
    with short_folder("user") as folder:
        yield make_home(folder)


def write_inventory(user: Home, faults: Mapping[str, str]) -> None:
    """A nodes.yml whose Python is a script with these faults, by node."""
    cases = "\n".join(f"{node}) {FAULTS[fault]};;" for node, fault in faults.items())
    script = user.root / "node-python"
    write_program(
        script,
        f"#!/bin/bash\nNODE=$1; shift\nPYTHON={shlex.quote(sys.executable)}\ncase $NODE in\n{cases}\nesac\n"
        'exec "$PYTHON" "$@"\n',
    )
    (user.envs.parent / "nodes.yml").write_text(
        f"schema: 1\ndefaults: {{path: {user.root}/stores/%h, python: '{script} %h', "
        f"fanout: {FANOUT}}}\n"
    )


def check(user: Home, on: str, *arguments: str) -> dict[str, Any]:
    result = user.run("nodes", "check", *arguments, "--on", on, "--json")
    document = parse_result(result.stdout)
    assert isinstance(document, dict), result.stderr
    return document


def check_faults(
    user: Home, count: int, faults: Collection[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    width = len(str(count))
    faulty = {f"n{2 * index:0{width}}": fault for index, fault in enumerate(faults, start=1)}
    write_inventory(user, faulty)
    monkeypatch.setattr(command, "CHECK_TIMEOUT_S", TIMEOUT_S)
    needs = EnvironmentNeeds(name="x", platforms=("linux-64",), glibc="2.28")
    selection = select_nodes(f"exec:n[{1:0{width}}-{count}]", user.envs.parent / "nodes.yml")
    report = command.check(selection, Console(as_json=True), needs)
    reasons = {
        each.node.name: [problem.reason for problem in each.problems]
        for each in report
        if each.verdict != "fit"
    }
    expected = {node: [fault] for node, fault in faulty.items() if fault not in HARMLESS}
    assert reasons == expected
    assert len(report) == count


def test_every_fault_is_named_and_the_others_are_fit(
    user: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_faults(user, NODES, QUICK_FAULTS, monkeypatch)


@pytest.mark.exhaustive
def test_thousand_nodes_with_faults(user: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    check_faults(user, MANY_NODES, FAULTS, monkeypatch)


def test_folded_text_for_people(user: Home) -> None:
    write_inventory(user, {"n03": "no-python", "n07": "no-python"})
    result = user.run("nodes", "check", "--on", "exec:n[01-12]")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("n[01-02,04-06,08-12]  fit: ")
    assert lines[1].startswith("n[03,07]")
    assert "unfit: no-python: bash: line 1: python3: command not found" in lines[1]
    assert lines[-1] == "12 nodes: 10 fit, 2 unfit"
    assert result.stderr == ""


def test_json_has_the_facts_of_every_node_and_nothing_is_left_there(user: Home) -> None:
    write_inventory(user, {})
    before = sorted(user.root.rglob("*"))
    document = check(user, "exec:n[1-2]")
    assert document["is_fit"]
    assert sorted(user.root.rglob("*")) == before
    assert [each["name"] for each in document["nodes"]] == ["n1", "n2"]
    for each in document["nodes"]:
        assert each["facts"]["store"]["path"] == f"{user.root}/stores/{each['name']}"
        assert each["verdict"] == "fit"


@pytest.mark.parametrize("attempt", range(4))
def test_interrupted_check_ends_and_leaves_no_process(user: Home, attempt: int) -> None:
    """The signal comes when the node's process has just been made: then Python may lose it."""
    write_inventory(user, {"n1": "timed-out"})
    with user.start("nodes", "check", "--on", "exec:n1") as child:
        while not _children(child.pid):
            assert child.poll() is None
        sleeping = _children(child.pid)
        child.terminate()
        assert child.wait(timeout=60) == 130
    assert not [pid for pid in sleeping if Path(f"/proc/{pid}").exists()]


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def test_clush_sees_the_same_nodes() -> None:
    """ClusterShell's own command agrees on what a node set is."""
    program = Path(sys.executable).parent / "nodeset"
    if not program.exists():
        pytest.skip("ClusterShell's command nodeset is not installed")
    text = "n[01-10]!n[3-4],x"
    result = subprocess.run([program, "-e", text], capture_output=True, text=True, check=True)
    assert result.stdout.split() == clustershell.expand(text)
