"""Shipments to simulated nodes: every command runs here, each node is a folder, faults are real."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from provision.cluster.inventory import NodeSelection
from provision.workflow.ship.activation import ActivationRun
from provision_runtime.node import store_lock
from provision_runtime.node.store import Store
from tests.node_stores import NAME, PackedToy, pack_toy
from tests.programs import write_program
from tests.ship_runs import (
    FAULTS,
    REACHED,
    SOURCE,
    Notes,
    SimulatedNodes,
    bad_disks,
    ship_request,
    shipment,
    states,
    write_image,
)

PYTHON36 = Path.home() / ".pyenv/versions/3.6.15/bin/python3.6"


class SharedNodes(SimulatedNodes):
    """Nodes that see one folder."""

    def selection(self) -> NodeSelection:
        selection = super().selection()
        defaults = dataclasses.replace(selection.defaults, path=PurePosixPath(self.root, "one"))
        return dataclasses.replace(selection, defaults=defaults)


@pytest.fixture
def toy(tmp_path: Path) -> PackedToy:
    return pack_toy(tmp_path, "1")


def nodes_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, **faults: str
) -> SimulatedNodes:
    nodes = SimulatedNodes(root=tmp_path / "nodes", names=names, faults=faults)
    monkeypatch.setenv("PATH", nodes.path)
    return nodes


def test_a_ship_reaches_all_nodes_and_sends_one_image(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-4]")
    image = write_image(tmp_path, toy)
    run = shipment(nodes, image)
    run.ship()
    assert set(states(run).values()) == {"active"}
    assert set(nodes.active().values()) == {toy.key}
    assert run.distribution.sent_bytes == image.size
    assert run.distribution.copies_between_nodes == 3
    assert not list((tmp_path / "nodes").glob("n*/staging/*"))

    again = shipment(nodes, image)
    again.ship()
    assert set(states(again).values()) == {"active"}
    assert again.distribution.sent_bytes == again.distribution.copies_between_nodes == 0
    # nothing was asked but the first question
    assert {state.method for state in again.states.values()} == {None}


@pytest.mark.exhaustive
def test_new_nodes_get_the_image_from_those_that_have_it(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = write_image(tmp_path, toy)
    shipment(nodes_of(tmp_path, monkeypatch, "n1"), image).ship()
    run = shipment(nodes_of(tmp_path, monkeypatch, "n[1-3]"), image)
    run.ship()
    assert set(states(run).values()) == {"active"}
    assert run.distribution.sent_bytes == 0
    assert run.distribution.copies_between_nodes == 2


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[Path]:
    with bad_disks(tmp_path / "nodes"):
        yield tmp_path


@pytest.mark.mounts
@pytest.mark.needs("faketime", "setarch")
def test_each_fault_is_named_with_node_and_stage_and_the_others_finish(
    small_disks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that hangs is asked twice, within one deadline, and never again."""
    toy = pack_toy(small_disks, "1", filler=100_000)
    calls = small_disks / "calls"
    faults = {**FAULTS, "hung": f"echo >>{shlex.quote(str(calls))}; {FAULTS['hung']}"}
    nodes = nodes_of(small_disks, monkeypatch, ",".join([*REACHED, "ok[1-4]"]), **faults)
    run = shipment(
        nodes, write_image(small_disks, toy), minimum="4", retries=1, tree=0, deadline_s=25
    )
    run.ship()
    reached = states(run)
    assert {name: reached[name] for name in REACHED} == REACHED
    assert {reached[f"ok{number}"] for number in range(1, 5)} == {"active"}
    active = nodes.active()
    assert {active[name] for name in REACHED} == {None}
    assert calls.read_text() == "\n\n"


def test_nothing_is_sent_below_the_minimum(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-3],dead", dead=FAULTS["dead"])
    run = shipment(nodes, write_image(tmp_path, toy))
    run.ship()
    assert states(run) == {
        "n1": "fit",
        "n2": "fit",
        "n3": "fit",
        "dead": "failed:check:unreachable",
    }
    assert run.distribution.sent_bytes == 0
    assert set(nodes.active().values()) == {None}
    assert not list((tmp_path / "nodes").glob("n*/staging/*"))  # others may ship
    run = shipment(nodes, write_image(tmp_path, toy), minimum="75%")
    run.ship()
    assert len(run.in_state("active")) == 3


def test_nothing_is_sent_to_nodes_that_are_too_old(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-6]")
    run = shipment(nodes, write_image(tmp_path, toy, glibc_min="99.1"))
    run.ship()
    assert set(states(run).values()) == {"failed:check:old-glibc"}
    assert run.distribution.sent_bytes == 0


@pytest.mark.exhaustive
def test_a_stage_only_ship_activates_nothing_and_activation_sends_nothing(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-2]")
    run = shipment(nodes, write_image(tmp_path, toy), stage_only=True)
    run.ship()
    assert set(states(run).values()) == {"passed"}
    assert set(nodes.active().values()) == {None}
    switch(nodes, toy.key)
    assert set(nodes.active().values()) == {toy.key}


def interrupting(tmp_path: Path, call: int, moment: str) -> str:
    """A fault: this process gets Ctrl-C at the beginning or the end of a node's call of that
    number."""
    interrupt = f"kill -INT {os.getpid()}"
    after = tmp_path / "after"
    write_program(after, f'#!/bin/sh\n"$@"\nstatus=$?\n{interrupt}\nexit $status\n')
    action = interrupt if moment == "begin" else f"WRAP={shlex.quote(shlex.quote(str(after)))}"
    calls = shlex.quote(str(tmp_path / "calls"))
    return f'echo >>{calls}; if [ "$(wc -l <{calls})" = {call} ]; then {action}; fi'


# Of a ship that sends to each node from here: check, status, receive, install, activate.
INSTALL = 4


@pytest.mark.parametrize("moment", ["end", "begin"])
@pytest.mark.parametrize("call", [INSTALL, 3, 2, 1])
def test_nothing_is_activated_after_ctrl_c(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch, call: int, moment: str
) -> None:
    """One node would be enough, and one is ready."""
    image = write_image(tmp_path, toy)
    shipment(nodes_of(tmp_path, monkeypatch, "n1"), image, stage_only=True).ship()
    fault = interrupting(tmp_path, call, moment)
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-2]", n2=fault)
    with pytest.raises(KeyboardInterrupt):
        shipment(nodes, image, minimum="1", tree=0).ship()
    assert len((tmp_path / "calls").read_text().splitlines()) == call
    assert nodes.active() == {"n1": None, "n2": None}


@pytest.mark.parametrize("moment", ["end", "begin"])
@pytest.mark.parametrize("call", [2, 1])
def test_activate_activates_nothing_after_ctrl_c(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch, call: int, moment: str
) -> None:
    """Of the calls: history, install, activate."""
    staged = nodes_of(tmp_path, monkeypatch, "n[1-2]")
    shipment(staged, write_image(tmp_path, toy), stage_only=True).ship()
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-2]", n2=interrupting(tmp_path, call, moment))
    with pytest.raises(KeyboardInterrupt):
        switch(nodes, toy.key)
    assert nodes.active() == {"n1": None, "n2": None}


def switch(nodes: SimulatedNodes, key: str | None) -> ActivationRun:
    """Activate a key, or the one before."""
    run = ActivationRun(ship_request(nodes, NAME), SOURCE, Notes())
    histories = run.ask_history()
    key = key or run.previous_key(histories)
    if key:
        run.select(key, histories)
        run.switch(key)
    return run


def test_rollback_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pack_toy(tmp_path, "1"), pack_toy(tmp_path, "2")
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-2]")
    shipment(nodes, write_image(tmp_path, first)).ship()
    assert {str(state) for state in switch(nodes, None).states.values()} == {
        "failed:check:no-previous"
    }
    shipment(nodes, write_image(tmp_path, second)).ship()
    switch(nodes, None)
    assert set(nodes.active().values()) == {first.key}
    switch(nodes, None)
    assert set(nodes.active().values()) == {second.key}


@pytest.mark.exhaustive
def test_a_node_without_the_environment_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pack_toy(tmp_path, "1"), pack_toy(tmp_path, "2")
    shipment(nodes_of(tmp_path, monkeypatch, "n[1-2]"), write_image(tmp_path, first)).ship()
    shipment(nodes_of(tmp_path, monkeypatch, "n1"), write_image(tmp_path, second)).ship()
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-2]")
    run = switch(nodes, second.key)
    assert {name: str(state) for name, state in run.states.items()} == {
        "n1": "active",
        "n2": "failed:check:not-here",
    }
    assert nodes.active()["n2"] == first.key
    run = switch(nodes, first.key)
    assert set(nodes.active().values()) == {first.key}


@pytest.mark.exhaustive
def test_two_runs_at_once_do_not_mix(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run works on n1 from another machine: it is named, and nothing changes there."""
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-3]")
    other = {"id": "run-9", "source": "desktop:1000:/data", "by": "bob@desktop (process 7)"}
    with store_lock.locked(Store(str(nodes.store("n1"))), NAME, other):
        pass
    run = shipment(nodes, write_image(tmp_path, toy), minimum="2")
    run.ship()
    assert states(run) == {"n1": "failed:ship:in-use", "n2": "active", "n3": "active"}
    failure = run.states["n1"].failure
    assert failure is not None
    assert "bob@desktop" in failure.message
    assert nodes.active()["n1"] is None


def test_an_image_in_which_some_bytes_are_wrong_is_fetched_anew(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-2]")
    for name, content in (("n1", b"x" * 50), ("n2", b"x" * len(toy.image))):
        part = Path(Store(str(nodes.store(name))).part(toy.parsed))
        part.parent.mkdir(parents=True)
        part.write_bytes(content)
    run = shipment(nodes, write_image(tmp_path, toy))
    run.ship()
    assert set(states(run).values()) == {"active"}


@pytest.mark.exhaustive
def test_a_late_node_gets_a_second_chance(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = shlex.quote(f"{tmp_path}/slept")
    once = f"[ -e {slept} ] || {{ touch {slept}; exec sleep 600; }}"
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-3]", n2=once)
    run = shipment(nodes, write_image(tmp_path, toy), deadline_s=8)
    run.ship()
    assert (tmp_path / "slept").exists()
    assert set(states(run).values()) == {"active"}


def test_a_python_that_is_too_old_says_so(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not PYTHON36.exists():
        pytest.skip("there is no Python 3.6")
    old = f'[ ${{0##*/}} = sh ] || {{ shift; exec {shlex.quote(str(PYTHON36))} "$@"; }}'
    nodes = nodes_of(tmp_path, monkeypatch, "n1,old", old=old)
    run = shipment(nodes, write_image(tmp_path, toy), minimum="1")
    run.ship()
    assert states(run) == {"n1": "active", "old": "failed:check:python-too-old"}


@pytest.mark.exhaustive
def test_a_shared_store_gets_one_copy_and_all_nodes_use_it(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = toy, pack_toy(tmp_path, "2")
    nodes = SharedNodes(root=tmp_path / "nodes", names="n[1-3]", faults={})
    monkeypatch.setenv("PATH", nodes.path)
    for packed in (first, second):
        image = write_image(tmp_path, packed)
        run = shipment(nodes, image, shared=True)
        run.ship()
        assert set(states(run).values()) == {"active"}
        assert run.distribution.sent_bytes == image.size
        assert run.distribution.copies_between_nodes == 0
        assert (nodes.store("one") / NAME).readlink().name == packed.key
    switched = ActivationRun(ship_request(nodes, NAME, shared=True), SOURCE, Notes())
    histories = switched.ask_history()
    switched.select(first.key, histories)
    switched.switch(first.key)
    assert (nodes.store("one") / NAME).readlink().name == first.key
    assert {str(state) for state in switched.states.values()} == {"active"}


@pytest.mark.exhaustive
def test_a_path_that_is_not_shared_is_said(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provision.workflow.ship.stages.SHARED_WAIT_S", 1.0)
    nodes = nodes_of(tmp_path, monkeypatch, "n[1-3]")
    run = shipment(nodes, write_image(tmp_path, toy), shared=True)
    run.ship()
    assert sorted(states(run).values()) == [
        "failed:install:not-shared",
        "failed:install:not-shared",
        "passed",
    ]
    assert set(nodes.active().values()) == {None}


@pytest.mark.exhaustive
def test_twenty_of_a_thousand_nodes_are_dead(
    tmp_path: Path, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All look at one folder, in which the environment is active already."""
    image = write_image(tmp_path, toy)
    root = tmp_path / "nodes"
    monkeypatch.setenv("PATH", SharedNodes(root=root, names="n0001").path)
    shipment(SharedNodes(root=root, names="n0001"), image).ship()
    dead = [f"n{number:04}" for number in range(50, 1001, 50)]
    nodes = SharedNodes(root=root, names="n[0001-1000]", faults=dict.fromkeys(dead, FAULTS["dead"]))
    run = shipment(nodes, image, minimum="98%")
    run.ship()
    reached = states(run)
    assert {name for name, state in reached.items() if state != "active"} == set(dead)
    assert {reached[name] for name in dead} == {"failed:check:unreachable"}
    assert run.distribution.sent_bytes == 0
