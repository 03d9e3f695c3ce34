"""Nodes that take much longer than others, and actions that read data after their program."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.adapters import clustershell
from provision.cluster import actions
from provision.cluster.inventory import NodeDefaults, select_nodes
from provision.cluster.remote import NodeReply, run_action
from provision_runtime.node.store import Store
from tests.node_stores import RUN, PackedToy, pack_toy


@pytest.mark.parametrize(
    ("durations", "seconds"),
    [
        pytest.param([], 10, id="nobody has ended yet"),
        pytest.param([1, 2, 3], 10, id="the others were quick"),
        pytest.param([1, 20, 30], 60, id="the others were slow too"),
    ],
)
def test_a_node_may_take_its_time_or_three_times_that_of_others(
    durations: list[float], seconds: float
) -> None:
    assert clustershell.time_limit_s(10, 3, durations) == seconds


def test_a_straggler_is_ended_and_the_others_are_not() -> None:
    script = "case $1 in n2) exec sleep 600;; *) cat; echo $1;; esac"
    outputs = clustershell.run(
        {node: ["sh", "-c", script, "sh", node] for node in ("n1", "n2", "n3")},
        stdin=lambda _: [b"in\n"],
        timeout_s=2.0,  # enough for the others on a busy machine
        straggler_factor=3,
    )
    assert [(output.node, output.status, output.stdout) for output in outputs] == [
        ("n1", 0, b"in\nn1"),
        ("n2", None, b""),
        ("n3", 0, b"in\nn3"),
    ]


@pytest.mark.parametrize("straggler_factor", [0.0, 3.0])
def test_output_that_nobody_ends_has_no_status(straggler_factor: float) -> None:
    """The command has ended, and what it left behind holds its output: ClusterShell reports the
    command's status at the time limit, though it has not read everything."""
    [output] = clustershell.run(
        {"n1": ["sh", "-c", "echo begun; sleep 5 & exit 0"]},
        timeout_s=0.5,
        straggler_factor=straggler_factor,
    )
    assert output.status is None
    assert output.stdout == b"begun"


def send(toy: PackedToy, data: bytes, path: Path) -> NodeReply[object]:
    [node] = select_nodes("exec:n1").nodes
    arguments = {"path": str(path), "pack": toy.pack, "run": RUN, "offset": 0}
    [reply] = run_action(
        [node],
        actions.STORE_RECEIVE,
        arguments,
        data=lambda _: [data[:5], data[5:]],
        stage="ship",
        timeout_s=60,
        defaults=NodeDefaults(),
    )
    return reply


def test_an_image_is_streamed_behind_the_program(tmp_path: Path) -> None:
    toy = pack_toy(tmp_path, "1")
    reply = send(toy, toy.image, tmp_path / "%h")
    assert reply.failure is None
    assert reply.result == {"size": len(toy.image)}
    image = Store(str(tmp_path / "n1")).image(toy.parsed)
    assert Path(image).read_bytes() == toy.image


def test_an_image_that_is_cut_off_behind_the_program_is_a_failure(tmp_path: Path) -> None:
    toy = pack_toy(tmp_path, "1")
    failure = send(toy, toy.image[:7], tmp_path / "store").failure
    assert failure is not None
    assert (failure.stage, failure.reason) == ("ship", "cut-off")
