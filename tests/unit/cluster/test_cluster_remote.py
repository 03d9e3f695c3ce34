"""What srun prints for many nodes -> replies and failures. Captured from Slurm 22.05."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import pytest

from provision.cluster import actions
from provision.cluster.inventory import Node, NodeDefaults, select_nodes
from provision.cluster.remote import (
    NodeReply,
    SrunMessage,
    node_argv,
    run_action,
    srun_documents,
    srun_messages,
    step_causes,
    transport,
)
from provision.core.errors import InvalidSpec
from provision_runtime.node.program import MARK
from provision_runtime.node.results import FitnessFacts

DEFAULTS = NodeDefaults()
STDERR = """\
0: sh: 1: exec: nopython: not found
2: Traceback (most recent call last):
srun: error: n[1,3]: tasks 0,2: Exited with exit code 127
srun: error: n2: task 1: Killed
srun: error: Task launch for StepId=5.0 failed on node n4: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted
"""
SLURM_NODE = Node(name="n1", engine="slurm", address="n1")
KUBERNETES_NODE = Node(name="k1", engine="kubernetes", address="k1")


def test_messages_of_srun_are_those_of_their_nodes() -> None:
    assert srun_messages(STDERR) == {
        "n1": SrunMessage(status=127, text="sh: 1: exec: nopython: not found"),
        "n2": SrunMessage(status=137, text="Killed", by_signal=True),
        "n3": SrunMessage(status=127, text="Traceback (most recent call last):"),
        "n4": SrunMessage(status=None, text="Communication connection failure"),
    }


# n2's task ended while srun wrote to it.
ABORTED = """\
srun: error: n2: task 1: Exited with exit code 137
1: Killed
srun: error: _server_write write failed: Connection reset by peer
srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 1
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: n3: task 2: Killed
0: slurmstepd-n1: error: *** STEP 14.69 ON n1 CANCELLED AT 2026-11-25T10:44:15 ***
srun: error: n4: task 3: Killed
srun: error: n1: task 0: Killed
srun: Force Terminated StepId=14.69
"""


def test_an_aborted_step_has_the_nodes_that_failed_first_as_its_cause() -> None:
    """srun kills the tasks of the others, which is no fault of theirs."""
    assert step_causes(srun_messages(ABORTED), ABORTED) == {"n2"}
    assert step_causes(srun_messages(STDERR), STDERR) == {"n1", "n3", "n4"}
    finished = "srun: error: n2: task 1: Exited with exit code 137\n"
    assert step_causes(srun_messages(finished), finished) == set()


def labeled(texts: dict[int, str]) -> bytes:
    """What srun prints for tasks: lines of 1,000 bytes, mixed."""
    lines = [" 0: ", "11: Welcome"]
    for start in range(0, max(map(len, texts.values())), 1000):
        for number, text in texts.items():
            lines.append(f"{number:2}: {text[start : start + 1000]}")
    return "\n".join(lines).encode() + b"\n"


def printed(name: str, keys: list[str]) -> str:
    result = {"active": None, "previous": None, "installed": keys}
    document = {"identity": [name, "boot"], "slurm_node": name, "result": result}
    return f"{MARK}{json.dumps(document)}"


def test_replies_that_srun_broke_into_lines() -> None:
    """It breaks lines after 1,024 bytes, and mixes the pieces of several tasks."""
    keys = [f"key{number:06}" for number in range(300)]
    texts = {0: printed("n0", keys), 11: printed("n11", [*keys, "last"])}
    documents = srun_documents(labeled(texts), "store-history")
    assert list(documents) == ["n0", "n11"]
    assert documents["n11"]["result"]["installed"] == [*keys, "last"]


def test_no_task_replies_for_the_node_of_another_one() -> None:
    texts = {0: printed("n0", []), 1: printed("n2", ["mine"]), 2: printed("n2", [])}
    assert list(srun_documents(labeled(texts), "store-history")) == ["n0"]


def test_reply_that_was_cut_off_is_none() -> None:
    cut_off = b'0: provision-node: {"slurm_node": "n1", "resu\n'
    assert srun_documents(cut_off, "store-history") == {}


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
