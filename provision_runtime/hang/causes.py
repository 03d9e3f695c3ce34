"""Known causes of hangs, and the states of ranks from which each is concluded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..comm.rank_names import name_ranks
from ..report.findings import CATALOG, has_lost_peer, known_error
from . import model, source
from .model import Frame
from .stacks import frame_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import RankState

_KINDS = {
    model.STOPPED: "rank-stopped",
    model.DEBUGGER: "breakpoint",
    model.DISK: "stuck-file",
    model.DATA_LOADER: "stuck-data-loader",
    model.EXCEPTION: "exception-handled",
}
_CONSTRUCTOR = {"_verify_param_shape_across_processes", "_sync_module_states"}
_SAVING = re.compile("save|checkpoint|state_dict")


@dataclass(frozen=True)
class Cause:
    """id: of the catalog of findings. line: where it is in the user's code."""

    id: str
    ranks: list[int]
    message: str
    advice: str
    line: Frame | None = None


def cause_of(ranks: Sequence[RankState], difference: str) -> Cause | None:
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
    last = waiting[-1]
    if not cause and (waiting[0].line, waiting[0].collective) != (last.line, last.collective):
        cause = next(filter(None, map(_of_condition, waiting)), None) or _of_paths(waiting)
    if not cause and difference:
        cause = _cause("calls-differ", waiting[0], difference)
    return cause


def _cause(id: str, state: RankState, message: str, line: Frame | None = None) -> Cause:
    return Cause(
        id, [state.rank], f"rank {state.rank} {message}", CATALOG[id].advice, line or state.line
    )


def _of_error(ranks: Sequence[RankState]) -> Cause | None:
    """Of ranks that have ended with an exception or a crash, the first that did not lose a peer."""
    failed = [state for state in ranks if state.error and not has_lost_peer(state.detail)]
    for state in sorted(failed, key=lambda state: state.error.time if state.error else 0):
        id = known_error(state.detail)
        if id == "parameters-differ":
            text = f"gives DDP another model: {_parameter_difference(state, ranks)}"
            return _cause(id, state, text)
        is_collective = any("torch/distributed/" in frame.file for frame in state.frames)
        condition = _of_condition(state) if is_collective and not id else None
        text = f"failed first: {state.detail[:300]}"
        return condition or _cause(id or "rank-failed", state, text)
    return None


def _of_kind(ranks: Sequence[RankState]) -> Cause | None:
    """Of a rank that does not come to the collective in which others wait."""
    for state in ranks:
        if state.kind in _KINDS and (state.kind != model.DATA_LOADER or state.waits):
            return _cause(_KINDS[state.kind], state, f"is held: {state.kind}, {state.detail}")
        if state.kind == model.GONE:
            return _cause("rank-gone", state, state.detail)
    return None


def _of_ended(ranks: Sequence[RankState], waiting: list[RankState]) -> Cause | None:
    line = waiting[0].line
    for state in ranks:
        if state.kind == model.ENDED:
            id = "uneven-batches" if line and source.loop_end(line) else "early-exit"
            text = f"{state.detail}, while {name_ranks([other.rank for other in waiting])} went on"
            return _cause(id, state, text, line)
    return None


def _of_constructor(ranks: Sequence[RankState], waiting: list[RankState]) -> Cause | None:
    """Ranks that wait in DDP's constructor, at different steps of it."""
    steps = {
        state.rank: {frame.function for frame in state.frames} & _CONSTRUCTOR for state in waiting
    }
    if any(steps.values()) and len(set(map(str, steps.values()))) > 1:
        text = f"waits in DDP's constructor: {_parameter_difference(waiting[0], ranks)}"
        return _cause("parameters-differ", waiting[0], text)
    return None


def _of_condition(state: RankState) -> Cause | None:
    """A line on the rank's stack is below a condition on a rank."""
    for frame in state.frames:
        condition = source.rank_condition(frame) if frame.is_user else ""
        if condition:
            return _on_one_rank(state, frame, f"is here alone, because of `if {condition}`")
    return None


def _on_one_rank(state: RankState, line: Frame, text: str) -> Cause:
    is_saving = any(_SAVING.search(frame.function) for frame in state.frames)
    id = "checkpoint-on-one-rank" if is_saving else "collective-on-one-rank"
    return _cause(id, state, text, line)


def _of_paths(waiting: Sequence[RankState]) -> Cause | None:
    """Ranks that wait in different collectives, by the lines that led there."""
    pairs = [(one, other) for one in waiting for other in waiting if one.line != other.line]
    for here, there in pairs:
        lines = {(frame.file, frame.function): frame.line for frame in there.frames[::-1]}
        for frame in here.frames:
            line = lines.get((frame.file, frame.function), 0)
            if frame.is_user and 0 < source.loop_end(frame) < line:
                text = f"has left the loop in which rank {here.rank} still waits"
                return _cause("uneven-batches", there, text, frame)
    for here, there in pairs:
        inner = here.line
        returned = source.early_return(inner) if inner else 0
        functions = [(frame.file, frame.function) for frame in there.frames]
        if inner and returned and (inner.file, inner.function) not in functions:
            line_of_return = frame_at(inner.function, inner.file, returned, "")
            text = f"returned from {inner.function}, in which rank {here.rank} waits"
            return _cause("early-return", there, text, line_of_return)
    state, inner = waiting[0], waiting[0].line
    guarded = source.guarded_collective(inner) if inner else 0
    if inner and guarded:
        text = "may have made a collective that others did not make"
        return _on_one_rank(state, frame_at(inner.function, inner.file, guarded, ""), text)
    return None


def _parameter_difference(state: RankState, ranks: Sequence[RankState]) -> str:
    """Which parameters of a rank differ from another's, by name and shape where both are known."""
    shapes = state.error.parameters if state.error else {}
    for other in ranks:
        theirs = other.error.parameters if other.error else {}
        names = [name for name in {**shapes, **theirs} if shapes.get(name) != theirs.get(name)]
        if shapes and theirs and names:
            text = ", ".join(f"{n} {shapes.get(n)}, not {theirs.get(n)}" for n in names[:4])
            return f"{text} as on rank {other.rank}"
    return state.error.message[:300] if state.error else "parameters of ranks differ"
