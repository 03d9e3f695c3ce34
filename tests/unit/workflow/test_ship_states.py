"""The rules over the states of nodes, who serves whom, and the journal of a shipment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as some

from provision.cli.main import cli
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node
from provision.cluster.pack import Pack, node_pack
from provision.cluster.remote import NodeReply
from provision.core.errors import InvalidSpec
from provision.workflow.ship.distribution import plan_wave
from provision.workflow.ship.stages import StageRun
from provision.workflow.ship.states import (
    NodeState,
    expand_waves,
    plan_waves,
    required_nodes,
)
from provision_runtime.node.results import StoreStatus
from provision_runtime.node.store import StoredPack
from tests.node_stores import pack_toy
from tests.ship_runs import Notes, SimulatedNodes, ship_request, shipment, write_image


def failure(reason: str, stage: str = "ship") -> NodeFailure:
    return NodeFailure(stage=stage, reason=reason, message="words")


def failed(reason: str, stage: str = "ship") -> NodeState:
    state = NodeState()
    state.fail(failure(reason, stage))
    return state


def test_a_state_reads_as_its_stage_and_reason() -> None:
    assert str(NodeState(state="active")) == "active"
    assert str(failed("disk-full")) == "failed:ship:disk-full"
    assert str(failed("timed-out", "check")) == "unknown:check:timed-out"


@pytest.mark.parametrize(
    ("minimum", "total", "required"),
    [("all", 7, 7), ("95%", 100, 95), ("95%", 10, 10), ("50%", 3, 2), ("3", 8, 3), ("100%", 8, 8)],
)
def test_minimum(minimum: str, total: int, required: int) -> None:
    assert required_nodes(minimum, total) == required


@pytest.mark.parametrize(("minimum", "may_go_on"), [("2", False), ("all", True), ("100%", True)])
def test_two_names_of_one_machine_are_one_node(
    tmp_path: Path, minimum: str, *, may_go_on: bool
) -> None:
    nodes = SimulatedNodes(root=tmp_path, names="n[1-2]")
    run = StageRun(ship_request(nodes, "toy", minimum=minimum), {}, Notes())
    run.record_failure("n2", failure("same-node", "check"))
    assert run.can_be_ready() is may_go_on


@pytest.mark.parametrize("minimum", ["", "0", "-1", "0%", "101%", "most", "1.5", "9"])
def test_a_minimum_that_makes_no_sense_is_refused(minimum: str) -> None:
    with pytest.raises(InvalidSpec, match="--min"):
        required_nodes(minimum, 8)


def test_host_and_node_agree_on_packs(tmp_path: Path) -> None:
    toy = pack_toy(tmp_path, "1")
    pack = Pack(image=tmp_path, sidecar=toy.pack)
    assert set(node_pack(pack)) == {field.name for field in dataclasses.fields(StoredPack)}


def test_a_wave_uses_all_servers_and_no_more_clients_than_allowed() -> None:
    waiting = [node_of(f"w{number}") for number in range(10)]
    servers = [*map(node_of, "abc")]
    services = plan_wave(servers[:2], waiting, clients_per_server=2, most_clients=64)
    assert services == {"a": ["w0", "w2"], "b": ["w1", "w3"]}
    services = plan_wave(servers, waiting, clients_per_server=2, most_clients=2)
    assert services == {"a": ["w0"], "b": ["w1"]}


def test_a_node_is_served_within_its_rack_or_zone() -> None:
    servers = [node_of("a", "r1", "z1"), node_of("b", "r2", "z2")]
    waiting = [node_of("c", "r2", "z2"), node_of("d", "r3", "z2"), node_of("e", "r1", "z1")]
    waiting.append(node_of("f"))
    services = plan_wave(servers, waiting, clients_per_server=2, most_clients=64)
    assert services == {"a": ["e", "f"], "b": ["c", "d"]}


def node_of(name: str, rack: str = "", zone: str = "") -> Node:
    return Node(name=name, engine="exec", address=name, rack=rack, zone=zone)


@given(some.integers(1, 200), some.integers(1, 8), some.integers(1, 64))
def test_waves_reach_every_node_once(
    total: int, clients_per_server: int, most_clients: int
) -> None:
    """From one server on, whatever the limits; and in few rounds where they are wide."""
    pool, queue, rounds = ["source"], [f"n{number}" for number in range(total)], 0
    while queue:
        services = plan_wave(
            [*map(node_of, pool)],
            [*map(node_of, queue)],
            clients_per_server=clients_per_server,
            most_clients=most_clients,
        )
        clients = [client for row in services.values() for client in row]
        assert 0 < len(clients) <= most_clients
        assert all(len(row) <= clients_per_server for row in services.values())
        assert clients == sorted(clients, key=queue.index) or len(services) > 1
        pool += clients
        queue = [node for node in queue if node not in clients]
        rounds += 1
    assert sorted(pool) == sorted({"source", *pool})
    if most_clients >= total:
        assert (clients_per_server + 1) ** rounds <= (total + 1) * (clients_per_server + 1)


@pytest.mark.parametrize("key", ["../../x", "other-0123456789ab", "train"])
@pytest.mark.parametrize("verb", ["activate", "rollback"])
def test_key_of_no_environment_of_that_name_reaches_no_node(verb: str, key: str) -> None:
    result = CliRunner().invoke(cli, [verb, "train", "--on", "local", "--key", key])
    assert result.exit_code == 3, result.output
    assert f"--key {key} is not a key of train" in result.output


def reply_of_a_store(node: Node, is_network: bool) -> NodeReply[StoreStatus]:
    """Of a node that has nothing yet, and may take the image."""
    store = {
        "problem": None,
        "is_executable": True,
        "free_bytes": 1 << 40,
        "free_inodes": None,
        "existing": "/lab",
        "type": "nfs4",
        "source": "server:/lab",
        "is_network": is_network,
    }
    result = {
        "active": None,
        "verified": False,
        "installed": None,
        "received": 0,
        "addresses": [],
        "methods": ["kernel"],
        "unread": {},
        "store": store,
    }
    return NodeReply(node=node, result=cast("StoreStatus", result), failure=None)


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one later"])
@pytest.mark.parametrize("is_network", [True, False])
def test_one_network_store_is_not_taken_for_a_store_of_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_network: bool, at_once: bool
) -> None:
    """Each would write into the store of the others; also where one of them is a straggler."""
    nodes = SimulatedNodes(root=tmp_path, names="n[1-2]")
    run = shipment(nodes, write_image(tmp_path, pack_toy(tmp_path, "1")))
    monkeypatch.setattr(
        run,
        "replies",
        lambda asked, *_, **__: [reply_of_a_store(node, is_network) for node in asked],
    )
    first, second = nodes.selection().nodes

    def check() -> None:
        if at_once:
            run._check_stores([first, second])
        else:
            run._check_stores([first])
            run._check_stores([second])

    if not is_network:
        check()
        return
    with pytest.raises(
        InvalidSpec, match=r"n1 and n2: they share one store\. Ship with --to shared"
    ):
        check()


def racked(total: int) -> list[Node]:
    """n1 to n4 stand in the rack a, all others in b."""
    return [
        Node(name=f"n{number}", engine="ssh", address="", rack="a" if number < 5 else "b")
        for number in range(1, total + 1)
    ]


@pytest.mark.parametrize(
    ("texts", "total", "reached"),
    [
        (["all"], 8, [8]),
        (["1", " 5%", "all"], 100, [1, 5, 100]),
        (["1", "5%", "all"], 8, [1, 1, 8]),
        (["1", "50%"], 8, [1, 4]),
        (["1", "rack:b", "6", "all"], 8, [1, 5, 6, 8]),
        (["racks"], 8, [4, 8]),
        (["1", "racks"], 8, [1, 4, 8]),
        (["4", "racks", "all"], 8, [4, 4, 8, 8]),
    ],
)
def test_waves(texts: list[str], total: int, reached: list[int]) -> None:
    nodes = racked(total)
    waves = plan_waves(expand_waves(texts, nodes), nodes, total)
    assert [sum(map(len, waves[: end + 1])) for end in range(len(waves))] == reached


def test_a_wave_takes_nodes_that_are_ready() -> None:
    """The first one failed; the wave of one node is another."""
    waves = plan_waves(("1", "rack:b", "all"), racked(6)[1:], 6)
    assert [[node.name for node in wave] for wave in waves] == [["n2"], ["n5", "n6"], ["n3", "n4"]]


@pytest.mark.parametrize(
    "texts",
    [["1", "some"], ["9"], [""], ["rack:c"], ["rack:"], ["zones"]],
)
def test_waves_that_cannot_be(texts: list[str]) -> None:
    with pytest.raises(InvalidSpec):
        expand_waves(texts, racked(8))
