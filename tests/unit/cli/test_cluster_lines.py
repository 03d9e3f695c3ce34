"""What the verbs for clusters print, on a terminal of 80 columns and in a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.adapters import clustershell
from provision.cli.console import wrap_line
from provision.cli.node_sets import LONGEST_NODE_SET, NodeSets
from provision.cluster.failures import REASONS, NodeFailure
from provision.cluster.inventory import Node, NodeSelection, select_nodes
from provision.verbs.drift.output import drift_lines
from provision.verbs.ship.output import ship_json, ship_lines
from provision.workflow.ship.stages import ShipRequest, StageRun
from provision.workflow.ship.states import NodeState
from tests.drift_records import cluster, record, selection_of, timed_out
from tests.ship_runs import Notes

TERMINAL = 80
KEY = "train-0e2bf03d9f9d"


def failed(name: str) -> NodeState:
    message = f"ssh: connect to host {name} port 22: No route to host, which is a longer message"
    failure = NodeFailure(stage="check", reason="unreachable", message=message)
    return NodeState(state="failed", failure=failure)


SHIPPED = {"n1": NodeState(state="active"), "n2": failed("n2"), "n3": failed("n3")}


def shipped(
    states: Mapping[str, NodeState] = SHIPPED,
    selection: NodeSelection | None = None,
    **fields: Any,
) -> StageRun:
    request = ShipRequest(name="train", selection=selection or select_nodes(",".join(states)))
    run = StageRun(request, {}, Notes())
    run.states.update(states)
    values = {"key": KEY, "sent_bytes": 5 << 30, "copies_between_nodes": 7, **fields}
    for name, value in values.items():
        setattr(run, name, value)
    return run


def test_a_ship_fits_the_terminal() -> None:
    lines = ship_lines(shipped(), TERMINAL)
    assert max(map(len, lines)) <= TERMINAL
    # The text of a node stays in its column.
    assert lines[0].startswith("n[2-3]  failed: check: unreachable")
    assert lines[1].startswith(" " * len("n[2-3]  ")) and lines[1][8] != " "


def test_nodes_that_failed_at_the_last_stage_have_the_pack() -> None:
    failure = NodeFailure(stage="activate", reason="hung", message="no banner")
    text = "\n".join(ship_lines(shipped({"n1": NodeState(state="failed", failure=failure)})))
    assert "provision activate train --on n1" in text and "--stage-only" not in text


def test_a_command_to_copy_reaches_the_same_hosts() -> None:
    """The names of Slurm and Ansible are not those that ssh connects to."""
    nodes = tuple(Node(name=f"n{i}", engine="ssh", address=f"10.0.0.{i}") for i in (1, 2, 3))
    selection = NodeSelection(text="gpu", nodes=nodes)
    report = shipped(selection=selection, halted="a wave failed")
    assert "provision rollback train --on 'gpu&n1'" in "\n".join(ship_lines(report))
    named = replace(selection, inventory=Path("hosts.json"))
    lines = "\n".join(ship_lines(shipped(selection=named, halted="a wave failed")))
    assert "provision rollback train --on 'gpu&n1' --inventory hosts.json" in lines


def test_in_a_pipe_a_node_set_is_one_line() -> None:
    lines = ship_lines(shipped())
    assert [line.partition("  ")[0] for line in lines[:2]] == ["n[2-3]", "n1"]
    assert (
        f"unreachable: {REASONS['unreachable'].meaning}. {REASONS['unreachable'].advice}" in lines
    )
    assert lines[-1].startswith(f"{KEY}: active on 1 of 3 nodes; --min demands 3; sent ")


def test_a_long_node_set_is_printed_once() -> None:
    names = [f"gpu-{number:03}-ib" for number in range(0, 400, 7)]
    assert len(clustershell.fold(names)) > LONGEST_NODE_SET
    states = {name: failed(name) for name in names}
    for state in states.values():
        state.note = "x"
    lines = ship_lines(shipped(states), TERMINAL)
    text = "\n".join(lines)
    assert text.count("gpu-[000,") == 1 and text.count("58 nodes [1]") == 2, text


def test_a_rack_is_named() -> None:
    sets = NodeSets({"r1": ["n1", "n2"], "r2": ["n3"]})
    assert (sets.short("n[1-2]"), sets.short("n1")) == ("rack r1 (2 nodes)", "n1")


def test_what_only_its_owner_can_start_is_said_with_the_next_step() -> None:
    note = "/opt/envs/x is mounted with FUSE, and only the user ann can read it"
    states = {name: NodeState(state="passed", note=note) for name in ("n1", "n2", "n3")}
    [line] = [line for line in ship_lines(shipped(states)) if note in line]
    assert line.startswith(f"n[1-3]: no other user can start it: {note}. ")
    assert "user_allow_other" in line and "`readers: all`" in line
    document: Any = ship_json(shipped(states))
    assert document["nodes"]["n1"]["note"] == note


def test_a_rollback_to_nothing_does_not_say_that_nothing_is_active() -> None:
    nothing = NodeFailure(stage="check", reason="no-previous", message="nothing was active before")
    states = {"n1": NodeState(state="failed", failure=nothing)}
    lines = ship_lines(shipped(verb="rollback", key="", states=states))
    assert lines[-1] == "train: nothing to go back to on 1 node, so nothing was changed"


def test_drift_fits_the_terminal() -> None:
    document = record(cluster(3), {"n0004": timed_out()})
    lines = drift_lines(document, selection_of(document), verbose=True, width=TERMINAL)
    assert max(map(len, lines)) <= TERMINAL


def test_long_words_stay_whole() -> None:
    path = "/" + "x" * 90
    assert wrap_line(f"  see {path}", 40) == ["  see", f"    {path}"]
    assert wrap_line(f"  see {path}", None) == [f"  see {path}"]


def test_a_lost_answer_is_no_proof_that_nothing_was_activated() -> None:
    lost = NodeFailure(stage="activate", reason="timed-out", message="no answer within 120 s")
    unknown = {"n1": NodeState(state="unknown", failure=lost), "n2": failed("n2")}
    assert "nothing was activated" not in ship_lines(shipped(states=unknown))[-1]
    failures = {"n1": failed("n1"), "n2": failed("n2")}
    assert "nothing was activated" in ship_lines(shipped(states=failures))[-1]
