"""What `provision ship`, `activate` and `rollback` print."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from provision.cli.console import wrap_line
from provision_runtime.report.text import format_bytes, format_count

if TYPE_CHECKING:
    from provision.cluster.failures import NodeFailure
    from provision.cluster.inventory import Node
    from provision.workflow.ship.ship import ShipReport
    from provision.workflow.ship.states import NodeState

# A longer one moves the text of its line.
WIDEST_NODE_SET = 30
# A longer one is printed once, at the end of the output.
LONGEST_NODE_SET = 60


# By the method that installed an environment.
INSTALLED_AS = {"kernel": "mounted", "fuse": "mounted by squashfuse", "tree": "unpacked"}


def ship_lines(report: ShipReport, width: int | None = None) -> list[str]:
    """States folded to node sets, the advice for each reason once, and what it all means. width: of
    the terminal."""
    from provision.adapters.clustershell import fold
    from provision.cluster.folding import fold_equal

    texts = {name: _state_text(report, name, state) for name, state in report.states.items()}
    sets = NodeSets()
    lines = folded_lines(texts, width, sets)
    sentences = advice_lines(state.failure for state in report.states.values())
    details = report.details
    sentences += _note_lines({name: node.note for name, node in details.items() if node.note}, sets)
    unmounted = [name for name, node in details.items() if node.ends_at_boot]
    if unmounted:
        sentences.append(
            f"{sets.short(fold(unmounted))}: a restart ends these mounts, and jobs fail there until "
            "the next ship: --boot-unit has the nodes mount again by themselves"
        )
    removed = {name: node.removed for name, node in details.items()}
    sentences += _key_lines("removed", removed, sets)
    in_use = {name: node.in_use for name, node in details.items()}
    sentences += _key_lines("still used by a job, and retained:", in_use, sets)
    if report.stopped is not None:
        failure = report.stopped.failure
        sentences.append(
            f"stopped: {len(report.stopped.nodes)} of {report.stopped.total} nodes failed for one "
            f"reason ({failure.stage}: {failure.reason}); more nodes would fail too"
        )
    if report.left_out:
        kinds = {node.name: _state_of_node(node) for node in report.left_out}
        parts = [f"{nodes} ({kind})" for nodes, kind in fold_equal(kinds)]
        sentences.append(f"left out: {'; '.join(parts)}; --include-down ships there too")
    if report.halted:
        active = [name for name, state in report.states.items() if state.state == "active"]
        nodes = shlex.quote(report.selection.part(active))
        sentences.append(
            f"stopped after {fold(active)}: {report.halted}. The others stay as they were. "
            f"Go back: provision rollback {report.name} --on {nodes}"
        )
    elif installed := _not_activated(report):
        sentences.append(
            f"{sets.short(fold(installed))}: it is installed there, and not active: provision activate "
            f"{report.name} --on {shlex.quote(report.selection.part(installed))}"
        )
    elif (
        0 < report.possible < report.required and report.goal == "active" and report.verb == "ship"
    ):
        sentences.append(
            f"only {format_count(report.possible, 'node')} can be ready, and --min requires "
            f"{report.required}. Repair the others, or lower --min; --stage-only ships to those "
            "that can be ready"
        )
    sentences += [*sets.lines(), _result_line(report)]
    for sentence in sentences:
        lines += wrap_line(sentence, width)
    return lines


def _not_activated(report: ShipReport) -> list[str]:
    """The nodes of a ship that failed at its last stage."""
    failures = {name: state.failure for name, state in report.states.items()}
    return [name for name, failure in failures.items() if failure and failure.stage == "activate"]


def _state_of_node(node: Node) -> str:
    return f"{node.state}: {node.reason}" if node.reason else node.state


def _state_text(report: ShipReport, name: str, state: NodeState) -> str:
    if state.failure is not None:
        failure = state.failure
        return f"{state.state}: {failure.stage}: {failure.reason}: {failure.message}"
    if report.dry_run and state.state == "fit":
        return "fit: would get the image"
    if report.dry_run and state.state == "verified" and report.verb != "ship":
        return "would be activated"
    method = report.details[name].method
    return f"{state.state} ({INSTALLED_AS.get(method, method)})" if method else state.state


def advice_lines(failures: Iterable[NodeFailure | None]) -> list[str]:
    """What to do, once for each reason."""
    from provision.cluster.failures import REASONS

    reasons = dict.fromkeys(failure.reason for failure in failures if failure)
    return [f"{reason}: {REASONS[reason].meaning}. {REASONS[reason].advice}" for reason in reasons]


def _note_lines(notes: Mapping[str, str], sets: NodeSets) -> list[str]:
    from provision.cluster.failures import REASONS
    from provision.cluster.folding import fold_equal

    advice = REASONS["not-readable"].advice
    return [
        f"{sets.short(nodes)}: no other user can start it: {note}. {advice}"
        for nodes, note in fold_equal(dict(notes))
    ]


def _key_lines(label: str, keys_of: Mapping[str, Sequence[str]], sets: NodeSets) -> list[str]:
    from provision.cluster.folding import fold_equal

    keys = {name: tuple(keys) for name, keys in keys_of.items() if keys}
    rows = fold_equal(keys)
    return [f"{sets.short(nodes)}: {label} {', '.join(values)}" for nodes, values in rows]


def _result_line(report: ShipReport) -> str:
    total = format_count(len(report.states), "node")
    if report.dry_run and report.verb != "ship":
        have_it = sum(state.state in ("verified", "active") for state in report.states.values())
        return f"{report.key or report.name}: would be active on {have_it} of {total}"
    if report.dry_run:
        waiting = sum(state.state == "fit" for state in report.states.values())
        if not waiting:
            return f"{report.key}: would send nothing to {total}"
        size = format_bytes(report.size)
        if not report.succeeded:
            return f"{report.key}: would send nothing: --min demands {report.required} nodes"
        return f"{report.key}: would bring {size} to {waiting} of {total}"
    if not report.key:
        return f"{report.name}: nothing to go back to on {total}, so nothing was changed"
    goal = "ready" if report.goal == "passed" else "active"
    line = f"{report.key}: {goal} on {report.ready} of {total}"
    if not report.succeeded and report.required > report.ready:
        line += f"; --min demands {report.required}"
        # A node whose answer to the activation was lost may be active.
        is_known = all(state.state != "unknown" for state in report.states.values())
        if report.goal == "active" and report.ready == 0 and is_known:
            line += ", so nothing was activated"
    if report.verb == "ship":
        line += f"; {_sent_text(report)}"
    return line


def _sent_text(report: ShipReport) -> str:
    if not report.sent_bytes and not report.copies_between_nodes:
        return "nothing was sent"
    text = f"sent {format_bytes(report.sent_bytes)} from here"
    if report.copies_between_nodes:
        noun = "copy" if report.copies_between_nodes == 1 else "copies"
        text += f", {report.copies_between_nodes} {noun} between nodes"
    return text


def ship_json(report: ShipReport) -> dict[str, object]:
    nodes = {}
    for name, state in report.states.items():
        row = {"state": state.state, **asdict(report.details[name])}
        if state.failure is not None:
            row.update(asdict(state.failure))
        nodes[name] = row
    return {
        "verb": report.verb,
        "name": report.name,
        "key": report.key,
        "goal": report.goal,
        "required": report.required,
        "ready": report.ready,
        "succeeded": report.succeeded,
        "dry_run": report.dry_run,
        "size": report.size,
        "sent_bytes": report.sent_bytes,
        "copies_between_nodes": report.copies_between_nodes,
        "halted": report.halted,
        "left_out": [node.name for node in report.left_out],
        "stopped": report.stopped.failure.reason if report.stopped else None,
        "nodes": nodes,
    }


class NodeSets:
    """The long node sets of one output: where they are named it says `250 nodes [1]`, and all their
    nodes are printed once, at the end. racks: the nodes of each; a set that is one is named so."""

    def __init__(self, racks: Mapping[str, Sequence[str]] | None = None) -> None:
        from provision.adapters import clustershell

        self._numbers: dict[str, int] = {}
        named = racks or {}
        self._racks = {clustershell.fold(nodes): rack for rack, nodes in named.items()}

    def short(self, nodes: str) -> str:
        from provision.adapters import clustershell

        if nodes in self._racks:
            return f"rack {self._racks[nodes]} ({format_count(clustershell.count(nodes), 'node')})"
        if len(nodes) <= LONGEST_NODE_SET:
            return nodes
        number = self._numbers.setdefault(nodes, len(self._numbers) + 1)
        return f"{format_count(clustershell.count(nodes), 'node')} [{number}]"

    def lines(self) -> list[str]:
        return [f"[{number}] {nodes}" for nodes, number in self._numbers.items()]


def folded_lines(
    texts: Mapping[str, str], width: int | None, sets: NodeSets, label: str = ""
) -> list[str]:
    """`n[0001-0998]  fit: ...`, most nodes first, in aligned columns. width: of the terminal."""
    from provision.cluster.folding import fold_messages

    rows = [(sets.short(nodes), text) for nodes, text in fold_messages(texts)]
    columns = min(max((len(nodes) for nodes, _ in rows), default=0), WIDEST_NODE_SET)
    lines = []
    for nodes, text in rows:
        indent = len(label) + columns + 2
        lines += wrap_line(f"{label}{nodes:{columns}}  {text}", width, indent)
    return lines
