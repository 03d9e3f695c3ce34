"""Known causes of hangs that the user's code shows: in which lines ranks are, and what leads there.

`diagnosis` chooses among these and the causes that the kind of a rank's state says.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from ..comm.rank_names import name_ranks
from ..dataclass import frozen
from ..report.findings import CATALOG
from . import source
from .model import Frame, RankState
from .stacks import frame_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    States = Sequence[RankState]

_CONSTRUCTOR = {"_verify_param_shape_across_processes", "_sync_module_states"}
BETWEEN_TWO = re.compile("i?(?:send|recv)|batch_isend_irecv")
ONE_MORE = "may have made a collective that the others did not make"
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


def make_cause(id: str, states: States, message: str, line: Frame | None = None) -> Cause:
    """states: of the ranks that it blames."""
    return Cause(
        id,
        [state.rank for state in states],
        f"{name_states(states)} {message}",
        CATALOG[id].advice,
        line or states[0].line,
    )


def name_states(states: Iterable[RankState]) -> str:
    return name_ranks([state.rank for state in states])


def _at(frame: Frame, line: int) -> Frame:
    """Another line of the function of a frame."""
    return frame_at(frame.function, frame.file, line, "")


def of_ended(ended: States, waiting: States) -> Cause | None:
    """Ranks that came to the end of their program, while others wait."""
    if not ended:
        return None
    text = f"{ended[0].detail}, while {name_states(waiting)} went on"
    frames = [frame for frame in waiting[0].frames if frame.is_user]
    for search, id in ((source.early_exit, "early-exit"), (source.skip, "step-skipped")):
        for frame, line in zip(frames, map(search, frames)):
            if line:
                return make_cause(id, ended, text, _at(frame, line))
    if any(map(source.loop, frames)):
        return make_cause("uneven-batches", ended, text, waiting[0].line)
    if library := _TRAINER.search(" ".join(frame.file for frame in waiting[0].frames)):
        text += f" in {library[1]}: by fewer batches, or a callback that stopped it alone"
    return make_cause("early-exit", ended, text, waiting[0].line)


def of_constructor(ranks: States, waiting: States) -> Cause | None:
    """Ranks that wait in DDP's constructor, at different steps of it."""
    steps = {
        state.rank: {frame.function for frame in state.frames} & _CONSTRUCTOR for state in waiting
    }
    if all(steps.values()) and len(set(map(str, steps.values()))) > 1:
        return make_cause(
            "parameters-differ",
            waiting[:1],
            f"waits in DDP's constructor: {parameter_difference(waiting[0], ranks)}",
        )
    return None


def of_paths(waiting: States) -> Cause | None:
    """Ranks that wait in different collectives, by the lines that led there."""
    groups: dict[Any, list[RankState]] = {}
    for state in waiting:
        groups.setdefault((state.line, state.collective and state.collective.op), []).append(state)
    pairs = [(a, b) for a in groups.values() for b in groups.values() if a is not b]
    paths = [path for group, peers in pairs for path in _paths(group, peers)]
    on_data = partial(_of_condition, is_on_rank=False)
    rules = (_of_condition, _of_try, _of_loop, _of_return, on_data, _of_skip)
    return _first(rules, paths) or (of_file(waiting[:1]) if pairs else None)


def of_conditions(state: RankState) -> Cause | None:
    """A rank that failed below a condition on ranks."""
    return _first([_of_condition], _paths([state], []))


def of_file(states: States) -> Cause | None:
    """A collective in the file in which they wait, that only some ranks make."""
    line, call = states[0].line, states[0].collective
    is_starting = call is not None and call.op == "init_process_group"
    guarded = source.guarded_collective(line) if line and not is_starting else 0
    return _on_one_rank(states, _at(line, guarded), ONE_MORE) if line and guarded else None


@frozen
class _Path:
    """A line of the user's code by which some ranks came here.

    other: the line of their peers in the same function, 0 if they are not in it; lead: by how many lines
    these are past the call that led here.
    """

    group: States
    peers: States
    frame: Frame
    other: int
    lead: int


def _paths(group: States, peers: States) -> Iterator[_Path]:
    """The innermost first."""
    lines = {(f.file, f.function): f.line for state in peers[:1] for f in state.frames[::-1]}
    frames = [frame for frame in group[0].frames if frame.is_user]
    leads = [lines.get((f.file, f.function), f.line) - f.line for f in frames]
    common = [lead for f, lead in zip(frames, leads) if (f.file, f.function) in lines]
    for frame in frames:
        other = lines.get((frame.file, frame.function), 0)
        yield _Path(group, peers, frame, other, common[0] if common else 0)


def _first(
    rules: Iterable[Callable[[_Path], Cause | None]], paths: Iterable[_Path]
) -> Cause | None:
    causes = (rule(path) for rule in rules for path in paths)
    return next(filter(None, causes), None)


def _of_condition(path: _Path, is_on_rank: bool = True) -> Cause | None:
    """Below a condition, on a rank or another, which the others have not met."""
    if not path.other and not is_on_rank:
        return None
    condition, is_in_other = source.condition(path.frame, path.other, is_on_rank)
    if is_in_other:
        return make_cause(
            "calls-differ",
            path.group,
            f"and {name_states(path.peers)} make other calls, by the branches of `if {condition}`",
            path.frame,
        )
    if not condition:
        return None
    return _on_one_rank(path.group, path.frame, f"came here alone, because of `if {condition}`")


def _of_try(path: _Path) -> Cause | None:
    """The others are in an except or finally block, and these in its try."""
    if not source.has_left_try(path.frame, path.other):
        return None
    return make_cause(
        "exception-handled",
        path.peers,
        f"left the try block before {name_states(path.group)}: by an exception?",
    )


def _of_loop(path: _Path) -> Cause | None:
    """The others went on after the loop that leads here."""
    loop, frame = source.loop(path.frame), path.frame
    is_over = (
        path.other >= loop.stop if path.other else path.lead and not source.early_return(frame)
    )
    if not loop or not is_over:
        return None
    text = f"left the loop before {name_states(path.group)}"
    if skip := source.skip(frame):
        text += f", or skipped a step of it in line {skip}"
        return make_cause("step-skipped", path.peers, text, _at(frame, skip))
    return make_cause("uneven-batches", path.peers, text, frame)


def _of_return(path: _Path) -> Cause | None:
    """The others are no longer in a function: unless they have not come to it."""
    frames = [frame for frame in path.group[0].frames if frame.is_user]
    is_before = path.lead < 0 and not any(map(source.loop, frames))
    returned = 0 if path.other or is_before else source.early_return(path.frame)
    if not returned:
        return None
    return make_cause(
        "early-return",
        path.peers,
        f"returned from {path.frame.function}, and {name_states(path.group)} did not",
        _at(path.frame, returned),
    )


def _of_skip(path: _Path) -> Cause | None:
    """The others are at an earlier line of the loop that leads here, and a step may be ended between."""
    is_earlier = path.other in source.loop(path.frame) and path.other < path.frame.line
    skip = source.skip(path.frame) if is_earlier else 0
    if path.other >= skip:
        return None
    return make_cause(
        "step-skipped",
        path.peers,
        f"skipped, it seems, the step that {name_states(path.group)} made",
        _at(path.frame, skip),
    )


def _on_one_rank(states: States, line: Frame, text: str) -> Cause:
    is_saving = any(_SAVING.search(frame.function) for frame in states[0].frames)
    id = "checkpoint-on-one-rank" if is_saving else "collective-on-one-rank"
    return make_cause(id, states, text, line)


def parameter_difference(state: RankState, ranks: States) -> str:
    """Which parameters of a rank differ from another's, by name and shape where both are known."""
    shapes = state.error.parameters if state.error else {}
    for other in ranks:
        other_shapes = other.error.parameters if other.error else {}
        names = [
            name
            for name in {**shapes, **other_shapes}
            if shapes.get(name) != other_shapes.get(name)
        ]
        if shapes and other_shapes and names:
            text = ", ".join(f"{n} {shapes.get(n)}, not {other_shapes.get(n)}" for n in names[:4])
            return f"{text} as on rank {other.rank}"
    return state.error.message[:300] if state.error else "parameters of ranks differ"
