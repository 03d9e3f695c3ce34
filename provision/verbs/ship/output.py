"""What `provision ship`, `activate` and `rollback` print."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from provision.cli.console import wrap_line
from provision.cli.node_sets import NodeSets, advice_lines, folded_lines
from provision_runtime.report.text import format_bytes, format_count

if TYPE_CHECKING:
    from provision.workflow.ship.stages import StageRun
    from provision.workflow.ship.states import NodeState

# By the method that installed an environment.
INSTALLED_AS = {"kernel": "mounted", "fuse": "mounted by squashfuse", "tree": "unpacked"}


def ship_lines(report: StageRun, width: int | None = None) -> list[str]:
    """States folded to node sets, the advice for each reason once, and what it all means. width: of
    the terminal."""
    from provision.adapters.clustershell import fold
    from provision.cluster.folding import fold_equal

    request, states = report.request, report.states
    sets = NodeSets()
    texts = {name: _state_text(report, state) for name, state in states.items()}
    lines = folded_lines(texts, width, sets)
    failures = {name: state.failure for name, state in states.items() if state.failure}
    sentences = advice_lines(failures.values())
    notes = {name: tuple(_notes(state)) for name, state in states.items()}
    for nodes, texts_of_nodes in fold_equal(notes):
        sentences += [f"{sets.short(nodes)}: {note}" for note in texts_of_nodes]
    if request.left_out:
        kinds = {
            node.name: ": ".join(filter(None, (node.state, node.reason)))
            for node in request.left_out
        }
        parts = [f"{nodes} ({kind})" for nodes, kind in fold_equal(kinds)]
        sentences.append(f"left out: {'; '.join(parts)}; --include-down ships there too")
    installed = [name for name, failure in failures.items() if failure.stage == "activate"]
    if report.halted:
        active = [name for name, state in states.items() if state.state == "active"]
        sentences.append(
            f"stopped after {fold(active)}: {report.halted}. The others stay as they were. Go back: "
            f"provision rollback {request.name} {request.selection.options(active)}"
        )
    elif installed:
        sentences.append(
            f"{sets.short(fold(installed))}: it is installed there, and not active: provision activate "
            f"{request.name} {request.selection.options(installed)}"
        )
    elif 0 < report.possible < report.expected and report.verb == "ship" and not request.stage_only:
        sentences.append(
            f"only {format_count(report.possible, 'node')} can be ready, and --min requires "
            f"{report.expected}. Repair the others, or lower --min; --stage-only ships to those "
            "that can be ready"
        )
    for sentence in [*sentences, *sets.lines(), _result_line(report)]:
        lines += wrap_line(sentence, width)
    return lines


def _state_text(report: StageRun, state: NodeState) -> str:
    if state.failure is not None:
        failure = state.failure
        return f"{state.state}: {failure.stage}: {failure.reason}: {failure.message}"
    if report.request.dry_run and state.state == "fit":
        return "fit: would get the image"
    if report.request.dry_run and state.state == "verified" and report.verb != "ship":
        return "would be activated"
    if state.method:
        return f"{state.state} ({INSTALLED_AS.get(state.method, state.method)})"
    return state.state


def _notes(state: NodeState) -> list[str]:
    """What else there is to say of a node."""
    from provision.cluster.failures import REASONS

    notes = []
    if state.note:
        advice = REASONS["not-readable"].advice
        notes.append(f"no other user can start it: {state.note}. {advice}")
    if state.ends_at_boot:
        notes.append(
            "a restart ends this mount, and jobs fail there until the next ship: --boot-unit has the "
            "node mount again by itself"
        )
    if state.removed:
        notes.append(f"removed {', '.join(state.removed)}")
    if state.in_use:
        notes.append(f"still used by a job, and retained: {', '.join(state.in_use)}")
    return notes


def _result_line(report: StageRun) -> str:
    total, key = format_count(len(report.states), "node"), report.key or report.request.name
    reached = [state.state for state in report.states.values()]
    if report.request.dry_run and report.verb != "ship":
        have_it = reached.count("verified") + reached.count("active")
        return f"{key}: would be active on {have_it} of {total}"
    if report.request.dry_run:
        waiting = reached.count("fit")
        if not waiting:
            return f"{key}: would send nothing to {total}"
        if not report.succeeded:
            return f"{key}: would send nothing: --min demands {report.expected} nodes"
        return f"{key}: would bring {format_bytes(report.size)} to {waiting} of {total}"
    if not report.key:
        return f"{key}: nothing to go back to on {total}, so nothing was changed"
    goal = "ready" if report.request.stage_only else "active"
    line = f"{key}: {goal} on {report.ready} of {total}"
    if report.expected > report.ready:
        line += f"; --min demands {report.expected}"
        # A node whose answer to the activation was lost may be active.
        if goal == "active" and report.ready == 0 and "unknown" not in reached:
            line += ", so nothing was activated"
    if report.verb == "ship" and report.sent_bytes + report.copies_between_nodes:
        line += f"; sent {format_bytes(report.sent_bytes)} from here"
        if report.copies_between_nodes:
            noun = "copy" if report.copies_between_nodes == 1 else "copies"
            line += f", {report.copies_between_nodes} {noun} between nodes"
    elif report.verb == "ship":
        line += "; nothing was sent"
    return line


def ship_json(report: StageRun) -> dict[str, object]:
    nodes = {}
    for name, state in report.states.items():
        row = asdict(state)
        failure = row.pop("failure")
        nodes[name] = {**row, **(failure or {})}
    return {
        "verb": report.verb,
        "name": report.request.name,
        "key": report.key,
        "goal": report.goal,
        "required": report.expected,
        "ready": report.ready,
        "succeeded": report.succeeded,
        "dry_run": report.request.dry_run,
        "size": report.size,
        "sent_bytes": report.sent_bytes,
        "copies_between_nodes": report.copies_between_nodes,
        "halted": report.halted,
        "left_out": [node.name for node in report.request.left_out],
        "nodes": nodes,
    }
