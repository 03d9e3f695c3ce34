"""Known causes of hangs, and the states of ranks from which each is concluded."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..comm.rank_names import name_ranks
from ..dataclass import frozen
from ..report.findings import CATALOG, has_lost_peer, known_error
from . import model, source
from .model import Frame
from .stacks import frame_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .model import RankState

    States = Sequence[RankState]

# Their cause, and the words before the detail of the state.
_KINDS = {
    model.GONE: ("rank-gone", ""),
    model.STOPPED: ("rank-stopped", "is stopped "),
    model.DEBUGGER: ("breakpoint", ""),
    model.DISK: ("stuck-file", ""),
    model.DATA_LOADER: ("stuck-data-loader", "waits for its DataLoader: "),
    model.EXCEPTION: ("exception-handled", "waits "),
    model.WAITING: ("waits-outside", "waits "),
}
_CONSTRUCTOR = {"_verify_param_shape_across_processes", "_sync_module_states"}
_BETWEEN_TWO = re.compile("i?(?:send|recv)|batch_isend_irecv")
_ONE_MORE = "may have made a collective that the others did not make"
# Libraries whose own loop may train.
_TRAINER = re.compile(r"-packages/(lightning|pytorch_lightning|transformers|trl)/")
_SAVING = re.compile("save|checkpoint|state_dict")


@frozen
class Cause:
    """id: of the catalog of findings. line: where it is in the user's code."""

    id: str
    ranks: list[int]
    message: str
    advice: str
    line: Frame | None = None


def cause_of(ranks: States, difference: str) -> Cause | None:
    """The likeliest cause that the states of a job's ranks allow.

    difference: the first recorded call that differs, as a sentence; empty if none does.
    """
    waiting = [state for state in ranks if state.kind in (model.COLLECTIVE, model.FAILED)]
    # Those of whose line there are few first.
    waiting.sort(key=lambda state: sum(other.line == state.line for other in waiting))
    cause = _of_error(ranks) or _of_kind(ranks)
    if cause or not waiting:
        return cause
    cause = _of_ended(ranks, waiting) or _of_constructor(ranks, waiting)
    # Calls between two ranks differ on each.
    is_compared = not any(s.collective and _BETWEEN_TWO.fullmatch(s.collective.op) for s in waiting)
    if not cause and is_compared:
        cause = _of_paths(waiting)
    if not cause and difference:
        return _cause("calls-differ", waiting[:1], difference)
    if not cause and is_compared:
        cause = _of_file(waiting[:1])
        # All are in one line: which of them made one more is not known.
        cause = cause and replace(cause, ranks=[], message=f"a rank {_ONE_MORE}")
    return cause


def _cause(id: str, states: States, message: str, line: Frame | None = None) -> Cause:
    """states: of the ranks that it blames."""
    numbers = [state.rank for state in states]
    text = f"{name_ranks(numbers)} {message}"
    return Cause(id, numbers, text, CATALOG[id].advice, line or states[0].line)


def _of_error(ranks: States) -> Cause | None:
    """Of ranks that have ended with an exception or a crash, the first that did not lose a peer."""
    failed = [state for state in ranks if state.error and not has_lost_peer(state.detail)]
    for state in sorted(failed, key=lambda state: state.error.time if state.error else 0):
        id = known_error(state.detail)
        if id == "parameters-differ":
            text = f"gives DDP another model: {_parameter_difference(state, ranks)}"
            return _cause(id, [state], text)
        is_collective = any("torch/distributed/" in frame.file for frame in state.frames)
        text, paths = f"failed first: {state.detail[:300]}", None
        if is_collective and not id:
            # Gloo aborts at a message of another size: then paths may tell why.
            others = [other for other in ranks if other.kind in (model.COLLECTIVE, model.FAILED)]
            paths = _of_condition([state], []) or _of_paths(others)
            if state.detail.endswith("Aborted"):
                id = "calls-differ"
                text += " in a collective, as with Gloo where ranks pass other sizes or types"
        return paths or _cause(id or "rank-failed", [state], text)
    return None


def _of_kind(ranks: States) -> Cause | None:
    """Of a rank that does not come to the collective in which others wait."""
    for kind, (id, tokens) in _KINDS.items():
        states = [state for state in ranks if state.kind == kind]
        if states and not (kind == model.WAITING and any(s.kind == model.ENDED for s in ranks)):
            # Ranks that are all gone were ended together: none of them is the first.
            blamed = states if kind == model.GONE else states[:1]
            return _cause(id, blamed, tokens + states[0].detail)
    return None


def _of_ended(ranks: States, waiting: list[RankState]) -> Cause | None:
    ended = [state for state in ranks if state.kind == model.ENDED]
    if not ended:
        return None
    text = f"{ended[0].detail}, while {name_ranks([state.rank for state in waiting])} went on"
    frames = [frame for frame in waiting[0].frames if frame.is_user]
    for search, id in ((source.early_exit, "early-exit"), (source.skip, "step-skipped")):
        for frame, line in zip(frames, map(search, frames)):
            if line:
                return _cause(id, ended, text, frame_at(frame.function, frame.file, line, ""))
    if any(map(source.is_in_loop, frames)):
        return _cause("uneven-batches", ended, text, waiting[0].line)
    library = _TRAINER.search(" ".join(frame.file for frame in waiting[0].frames))
    if library:
        text += f" in {library[1]}: by fewer batches, or a callback that stopped it alone"
    return _cause("early-exit", ended, text, waiting[0].line)


def _of_constructor(ranks: States, waiting: list[RankState]) -> Cause | None:
    """Ranks that wait in DDP's constructor, at different steps of it."""
    steps = {
        state.rank: {frame.function for frame in state.frames} & _CONSTRUCTOR for state in waiting
    }
    if all(steps.values()) and len(set(map(str, steps.values()))) > 1:
        text = f"waits in DDP's constructor: {_parameter_difference(waiting[0], ranks)}"
        return _cause("parameters-differ", waiting[:1], text)
    return None


def _of_paths(waiting: States) -> Cause | None:
    """Ranks that wait in different collectives, by the lines that led there."""
    groups: dict[Any, list[RankState]] = {}
    for state in waiting:
        groups.setdefault((state.line, state.collective and state.collective.op), []).append(state)
    pairs = [(a, b) for a in groups.values() for b in groups.values() if a is not b]
    rules: list[Callable[[list[RankState], list[RankState]], Cause | None]] = [
        _of_condition,
        partial(_of_try, block="handlers"),
        partial(_of_try, block="finalbody"),
        _of_loop,
        _of_return,
        partial(_of_condition, is_on_rank=False),
        _of_skip,
    ]
    for rule in rules:
        for group, peers in pairs:
            cause = rule(group, peers)
            if cause:
                return cause
    return _of_file(waiting[:1]) if pairs else None


def _of_file(states: States) -> Cause | None:
    """A collective in the file in which they wait, that only some ranks make."""
    line, call = states[0].line, states[0].collective
    is_starting = call is not None and call.op == "init_process_group"
    guarded = source.guarded_collective(line) if line and not is_starting else 0
    if not line or not guarded:
        return None
    return _on_one_rank(states, frame_at(line.function, line.file, guarded, ""), _ONE_MORE)


def _paths(group: States, peers: States) -> Iterator[tuple[Frame, int, int]]:
    """The user's frames of some ranks, the innermost first; the line of others in the same function, 0
    if they are not in it; and by how many lines these are past the call that led here."""
    lines = {(f.file, f.function): f.line for state in peers[:1] for f in state.frames[::-1]}
    frames = [frame for frame in group[0].frames if frame.is_user]
    common = [frame for frame in frames if (frame.file, frame.function) in lines]
    lead = lines[common[0].file, common[0].function] - common[0].line if common else 0
    for frame in frames:
        yield frame, lines.get((frame.file, frame.function), 0), lead


def _of_condition(group: States, peers: States, is_on_rank: bool = True) -> Cause | None:
    """Below a condition, on a rank or another, which the others have not met."""
    for frame, line, _ in _paths(group, peers):
        if line or is_on_rank:
            condition, is_in_other = source.condition(frame, line, is_on_rank)
            if is_in_other:
                text = f"and {_names(peers)} make other calls, by the branches of `if {condition}`"
                return _cause("calls-differ", group, text, frame)
            if condition:
                return _on_one_rank(group, frame, f"came here alone, because of `if {condition}`")
    return None


def _of_try(group: States, peers: States, block: str) -> Cause | None:
    """The others are in an except or finally block, and these in its try."""
    for frame, line, _ in _paths(group, peers):
        if line and source.has_left_try(frame, line, block):
            text = f"left the try block before {_names(group)}: by an exception?"
            return _cause("exception-handled", peers, text)
    return None


def _of_loop(group: States, peers: States) -> Cause | None:
    """The others went on after the loop that leads here."""
    for frame, line, is_past in _paths(group, peers):
        is_over = (
            source.has_left_loop(frame, line) if line else is_past and source.is_in_loop(frame)
        )
        if is_over and not (source.early_return(frame) and not line):
            text = f"left the loop before {_names(group)}"
            skip = source.skip(frame)
            if skip:
                text += f", or skipped a step of it in line {skip}"
                frame = frame_at(frame.function, frame.file, skip, "")
            return _cause("step-skipped" if skip else "uneven-batches", peers, text, frame)
    return None


def _of_return(group: States, peers: States) -> Cause | None:
    """The others are no longer in a function: unless they have not come to it."""
    paths = list(_paths(group, peers))
    for frame, line, lead in paths:
        is_before = lead < 0 and not any(source.is_in_loop(path[0]) for path in paths)
        returned = 0 if line or is_before else source.early_return(frame)
        if returned:
            text = f"returned from {frame.function}, and {_names(group)} did not"
            where = frame_at(frame.function, frame.file, returned, "")
            return _cause("early-return", peers, text, where)
    return None


def _of_skip(group: States, peers: States) -> Cause | None:
    """The others are at an earlier line of the loop that leads here, and a step may be ended between."""
    for frame, line, _ in _paths(group, peers):
        skip = source.skip(frame) if source.is_earlier_in_loop(frame, line) else 0
        if line < skip:
            text = f"skipped, it seems, the step that {_names(group)} made"
            where = frame_at(frame.function, frame.file, skip, "")
            return _cause("step-skipped", peers, text, where)
    return None


def _names(states: States) -> str:
    return name_ranks([state.rank for state in states])


def _on_one_rank(states: States, line: Frame, text: str) -> Cause:
    is_saving = any(_SAVING.search(frame.function) for frame in states[0].frames)
    id = "checkpoint-on-one-rank" if is_saving else "collective-on-one-rank"
    return _cause(id, states, text, line)


def _parameter_difference(state: RankState, ranks: States) -> str:
    """Which parameters of a rank differ from another's, by name and shape where both are known."""
    shapes = state.error.parameters if state.error else {}
    for other in ranks:
        theirs = other.error.parameters if other.error else {}
        names = [name for name in {**shapes, **theirs} if shapes.get(name) != theirs.get(name)]
        if shapes and theirs and names:
            text = ", ".join(f"{n} {shapes.get(n)}, not {theirs.get(n)}" for n in names[:4])
            return f"{text} as on rank {other.rank}"
    return state.error.message[:300] if state.error else "parameters of ranks differ"
