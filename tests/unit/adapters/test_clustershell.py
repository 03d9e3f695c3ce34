"""Node sets, and commands on simulated nodes."""

from __future__ import annotations

import resource
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest

from provision.adapters import clustershell
from provision.core.errors import InvalidSpec, ToolMissing

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's ClusterShell configuration: one file of groups."""
    from ClusterShell import NodeSet, NodeUtils

    (tmp_path / "groups.conf").write_text(f'[Main]\ndefault: lab\nautodir: "{tmp_path}/groups.d"\n')
    (tmp_path / "groups.d").mkdir()
    (tmp_path / "groups.d" / "lab.yaml").write_text("lab:\n  rack7: 'n[1-3]'\n  empty: ''\n")
    resolver = NodeUtils.GroupResolverConfig([str(tmp_path / "groups.conf")])
    monkeypatch.setattr(NodeSet, "RESOLVER_STD_GROUP", resolver)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n[01-03]", ["n01", "n02", "n03"]),
        ("a,b", ["a", "b"]),
        ("n[1-4]!n[2-3]", ["n1", "n4"]),
        ("n[1-4]&n[3-9]", ["n3", "n4"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("me@host.lab", ["me@host.lab"]),
        ("fe80::1", ["fe80::1"]),
        ("rack1-300000", ["rack1-300000"]),
        ("n[1-9/4]", ["n1", "n5", "n9"]),
        ("", []),
    ],
)
def test_node_sets(text: str, nodes: list[str]) -> None:
    assert clustershell.expand(text) == nodes


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("n[1-4", "missing bracket"),
        ("n[1-4]]", "illegal closing bracket"),
        ("n[4-1]", '"4-1"'),
        ("n[a-b]", '"a-b"'),
        ("n[1-4,]", "empty range"),
        ("a,,b", "','"),
        ("!a", "'!'"),
        ("a b", "`a b`"),
        ("-oProxyCommand=touch", "`-oProxyCommand=touch`"),
        ("n;reboot", "`n;reboot`"),
        ("slurm:gpu", "`slurm:gpu`"),
        ("n[1-99999999]", "more than 100,000 nodes"),
        ("n[1-400]r[1-400]", "`n[1-400]r[1-400]` has more than 100,000 nodes"),
        ("a[1-60000],b[1-60000]", "`b[1-60000]` has more than 100,000 nodes"),
        ("n[1-60000,100000-160000]", "more than 100,000 nodes"),
        (f"n[1-{'9' * 5000}]", "more than 100,000 nodes"),
        ("host$(reboot)", "`host$(reboot)`"),
        ("a`id`", "a`id`"),
        ("me@-oProxyCommand", "`me@-oProxyCommand`"),
        ("../../etc", "`../../etc`"),
    ],
)
def test_typos_are_quoted(text: str, part: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        clustershell.expand(text)
    assert part in str(caught.value)
    assert len(caught.value.message) < 300
    assert "n[1-4,7]" in caught.value.advice


@pytest.mark.usefixtures("groups")
def test_groups_of_the_users_configuration() -> None:
    assert clustershell.expand("@rack7") == ["n1", "n2", "n3"]
    assert clustershell.expand("@rack7!n2") == ["n1", "n3"]
    assert clustershell.expand("@empty") == clustershell.expand("@nope") == []


@given(st.sets(st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(-ib[0-9])?", fullmatch=True), max_size=30))
def test_folding_loses_no_name(names: set[str]) -> None:
    assert set(clustershell.expand(clustershell.fold(names))) == names


def test_folding_keeps_leading_zeros() -> None:
    names = [f"n{number:04}" for number in range(1, 999)]
    assert clustershell.fold(names) == "n[0001-0998]"


def of_nodes(nodes: Iterable[str], script: str) -> dict[str, list[str]]:
    """The same script for all nodes, with the node as $1."""
    return {node: ["sh", "-c", script, "sh", node] for node in nodes}


def test_outputs_are_in_the_order_of_the_nodes() -> None:
    nodes = ["n3", "n1", "x", "n2"]
    commands = of_nodes(nodes, "cat; echo $1; echo no >&2; exit 3")
    outputs = clustershell.run(commands, stdin=lambda _: [b"i", b"", b"n\n"], timeout_s=20)
    assert [output.node for output in outputs] == nodes
    assert [output.stdout for output in outputs] == [f"in\n{node}".encode() for node in nodes]
    assert {output.stderr for output in outputs} == {"no"}
    assert {output.status for output in outputs} == {3}
    assert all(output.started <= output.ended for output in outputs)


def test_each_node_may_read_something_else() -> None:
    commands = of_nodes(["n1", "n2", "n3"], "cat")
    outputs = clustershell.run(commands, stdin=lambda node: [node[-1].encode()], timeout_s=20)
    assert [output.stdout for output in outputs] == [b"1", b"2", b"3"]


def test_no_nodes() -> None:
    assert clustershell.run({}, timeout_s=1) == []


def test_late_node_has_no_status_and_is_killed(tmp_path: Path) -> None:
    script = f"test $1 = n1 && exit 0; echo begun; sleep 1; touch {shlex.quote(str(tmp_path))}/$1"
    first, second = clustershell.run(of_nodes(["n1", "n2"], script), timeout_s=0.3)
    assert first.status == 0
    assert second.status is None
    assert second.stdout == b"begun"


def test_killed_command_has_the_status_of_a_shell() -> None:
    [output] = clustershell.run(of_nodes(["n1"], "kill -9 $$"), timeout_s=20)
    assert output.status == 128 + 9


def test_outputs_are_passed_on_as_they_come() -> None:
    seen: list[clustershell.NodeOutput] = []
    commands = of_nodes(["n1", "n2"], "true")
    outputs = clustershell.run(commands, timeout_s=20, on_output=seen.append)
    assert sorted(output.node for output in seen) == [output.node for output in outputs]


def test_command_that_does_not_read_its_input_says_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """ClusterShell logs a broken pipe for each node."""
    commands = of_nodes([f"n{number}" for number in range(20)], "exit 0")
    outputs = clustershell.run(commands, stdin=lambda _: [b"x" * 1_000_000], timeout_s=20)
    assert {output.status for output in outputs} == {0}
    assert capfd.readouterr().err == ""


def test_more_commands_than_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        commands = of_nodes([f"n{number}" for number in range(60)], "true")
        outputs = clustershell.run(commands, fanout=60, timeout_s=30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {output.status for output in outputs} == {0}


def test_ssh_never_asks() -> None:
    command = clustershell.ssh_command("n1", "true", connect_s=2.5, ssh_options=("-F", "/x"))
    assert "-oBatchMode=yes" in command
    assert "-oControlMaster=no" in command
    assert "-oConnectTimeout=3" in command
    assert command[-2:] == ["n1", "true"]


def test_without_ssh_no_node_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing) as caught:
        clustershell.run({"n1": clustershell.ssh_command("n1", "true")}, timeout_s=5)
    assert "`ssh` cannot be started" in str(caught.value)
