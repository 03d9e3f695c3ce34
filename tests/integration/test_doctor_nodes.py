"""`provision doctor --on NODES`: each finding once, with all nodes that have it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Home, make_home
from tests.integration.short_folders import short_folder
from tests.programs import write_program
from tests.results import parse_result


@pytest.fixture(scope="module")
def user() -> Iterator[Home]:
    with short_folder("user") as folder:
        yield describe_nodes(make_home(folder))


def describe_nodes(user: Home) -> Home:
    script = user.envs.parent / "node-python"
    # Node n2 has a setting, n3 cannot be reached.
    write_program(
        script,
        "#!/bin/sh\n"
        'case "$PROVISION_NODE_NAME" in\n'
        "    n2) export NCCL_P2P_DISABLE=1 ;;\n"
        "    n3) echo 'ssh: connect to host n3 port 22: Connection refused' >&2; exit 255 ;;\n"
        "esac\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n',
    )
    (user.envs.parent / "nodes.yml").write_text(
        f"schema: 1\ngroups: {{}}\ndefaults: {{python: {script}}}\n"
    )
    return user


def test_findings_of_nodes_are_folded(user: Home) -> None:
    words = ("doctor", "--on", "exec:n[1-4]", "--only", "nccl-setting")
    result = user.run(*words)
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "n2"
    assert lines[1].startswith("warn     nccl-setting: NCCL_P2P_DISABLE=1")
    assert "n3  refused: " in result.stdout
    assert "n[1,4]  no findings" in lines
    assert lines[-1] == "4 nodes: 2 without findings, 1 not examined"
    document = parse_result(user.run(*words, "--json").stdout)
    assert sorted(document["nodes"]) == ["n1", "n2", "n4"]
    assert document["failures"]["n3"]["reason"] == "refused"


def test_an_environment_that_nodes_lack_or_have_not_mounted(user: Home) -> None:
    """n2 has a link to the folder where a restart ended the mount."""
    store = user.root / "store"
    (store / "n2" / "envs" / "lab-0123456789ab").mkdir(parents=True)
    (store / "n2" / "lab").symlink_to("envs/lab-0123456789ab")
    inventory = user.envs.parent / "stores.yml"
    inventory.write_text(f"schema: 1\ngroups: {{}}\ndefaults: {{path: {store}/%h}}\n")
    words = ("doctor", "lab", "--on", "exec:n[1-2]", "--inventory", str(inventory))
    result = user.run(*words)
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"n1  not-here: there is no {store}/n1/lab"
    assert lines[1].startswith(
        f"n2  not-installed: {store}/n2/envs/lab-0123456789ab is not mounted"
    )
    assert "brings it there" in lines[2] and "without sending anything" in lines[3]
    assert lines[4] == "2 nodes: 0 without findings, 2 not examined"


def test_a_mistyped_environment_reaches_no_node(user: Home) -> None:
    (user.envs / "train").mkdir(parents=True)
    (user.envs / "train" / "spec.yml").write_text("torch: '2.3'\n")
    result = user.run("doctor", "trains", "--on", "exec:n1")
    assert result.returncode == 3
    assert "Did you mean `train`" in result.stderr
