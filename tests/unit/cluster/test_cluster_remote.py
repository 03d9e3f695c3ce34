"""How nodes are reached, and what each replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import pytest

from provision.cluster import actions
from provision.cluster.inventory import Node, NodeDefaults, select_nodes
from provision.cluster.remote import (
    NodeReply,
    node_argv,
    run_action,
    transport,
)
from provision.core.errors import InvalidSpec
from provision_runtime.node.results import FitnessFacts

DEFAULTS = NodeDefaults()
SLURM_NODE = Node(name="n1", engine="slurm", address="n1")
KUBERNETES_NODE = Node(name="k1", engine="kubernetes", address="k1")


def test_transports() -> None:
    [ssh_node], [local] = select_nodes("n1").nodes, select_nodes("local").nodes
    assert transport(ssh_node, NodeDefaults(via="srun")) == "ssh"
    assert transport(SLURM_NODE, NodeDefaults()) == "ssh"
    assert transport(SLURM_NODE, NodeDefaults(via="srun")) == "srun"
    assert node_argv(local, "echo 'a b'", NodeDefaults()) == ["sh", "-c", "echo 'a b'"]
    assert node_argv(SLURM_NODE, "true", NodeDefaults(via="srun"))[-3:] == ["sh", "-c", "true"]
    with pytest.raises(InvalidSpec):
        node_argv(KUBERNETES_NODE, "true", NodeDefaults())


def run_facts(
    nodes: Sequence[Node], arguments: Any, defaults: NodeDefaults = DEFAULTS, **options: Any
) -> list[NodeReply[FitnessFacts]]:
    return run_action(
        nodes,
        actions.FACTS,
        arguments,
        stage="check",
        timeout_s=60,
        defaults=defaults,
        **options,
    )


def test_srun_needs_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InvalidSpec) as caught:
        run_facts([SLURM_NODE], {}, defaults=NodeDefaults(via="srun"))
    assert "salloc" in caught.value.advice


def test_nodes_outside_the_allocation_are_not_asked() -> None:
    outside = [SLURM_NODE, Node(name="n2", engine="slurm", address="n2")]
    replies = run_facts(outside, {}, defaults=NodeDefaults(via="srun", allocated="n[3-5]"))
    failures = [reply.failure for reply in replies if reply.failure is not None]
    assert [failure.reason for failure in failures] == ["not-in-allocation"] * 2
    assert "n[3-5]" in failures[0].message


def test_kubernetes_nodes_run_nothing() -> None:
    [reply] = run_facts([KUBERNETES_NODE], {})
    assert reply.failure is not None and reply.failure.reason == "not-run"


def test_nodes_of_several_engines_in_one_run() -> None:
    nodes = [
        KUBERNETES_NODE,
        *select_nodes("exec:n[1-2]").nodes,
        *select_nodes("local").nodes,
    ]
    arrived: list[NodeReply[FitnessFacts]] = []
    replies = run_facts(
        nodes,
        lambda node: {"path": str(PurePosixPath("/tmp") / node.name), "rules": {}},
        on_reply=arrived.append,
    )
    assert [reply.node for reply in replies] == nodes
    assert len(arrived) == len(nodes)
    paths = [reply.result["store"]["path"] for reply in replies if reply.result]
    assert paths == ["/tmp/n1", "/tmp/n2", "/tmp/local"]
    assert replies[1].identity == ("n1", "simulated")
