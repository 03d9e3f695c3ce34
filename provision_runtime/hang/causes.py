"""Known causes of hangs, and the states of ranks from which each is concluded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..comm.rank_names import name_ranks
from . import model, source
from .stacks import main_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .model import Frame, RankState

# id: what to do.
CATALOG = {
    "parameters-differ": "Build the same model on all ranks, with the same options and in the same "
    "order; DDP compares parameters by their position.",
    "launch-in-init": "Start processes only below `if __name__ == '__main__':`, not while the program "
    "is imported: each process that is started imports it again.",
    "makedirs-race": "os.makedirs(path, exist_ok=True), or let one rank make it before a barrier.",
    "out-of-memory": "Give each rank less, or run `provision doctor` on its node.",
    "rank-failed": "Mend this error first: the others only lost their peer.",
    "rank-gone": "Look for the OOM killer (`dmesg`, `provision doctor`), a cancelled step, or "
    "os._exit in the program.",
    "rank-stopped": "Continue it with `kill -CONT`, or end the debugger that holds it.",
    "breakpoint": "Remove the breakpoint, or run one rank: under torchrun nobody can type there.",
    "stuck-file": "Look at the mount and its server: the process waits in the kernel until they answer.",
    "stuck-data-loader": "Look at the mount and its server, or run the loader with num_workers=0; "
    "DataLoader(timeout=...) turns such a wait into an error.",
    "exception-handled": "End the rank instead: no collective in an except block, nor before it raises.",
    "checkpoint-on-one-rank": "Call it on all ranks: saving sharded or distributed state is a "
    "collective. Only what writes a plain file belongs under the condition.",
    "collective-on-one-rank": "Call it on all ranks, and use its result under the condition.",
    "uneven-batches": "Give all ranks as many batches (DistributedSampler, drop_last=True), or train in "
    "`with model.join():` (torch.distributed.algorithms.Join).",
    "early-return": "Let every rank reach the same collectives before it returns.",
    "early-exit": "Let every rank take part to the end, or give all of them as much work.",
    "calls-differ": "Make the same calls in the same order, with equal shapes and types, on all ranks.",
}
# Errors of ranks that only lost a peer.
_LOST_PEER = re.compile(
    r"[Cc]onnection (closed|reset)|[Bb]roken pipe|[Rr]ead error|[Tt]imed? ?out|remote process exited"
    r"|Peer|ncclRemoteError|Socket|process \d+ terminated|ProcessExited|ChildFailed|SIGTERM"
)
_PARAMETERS = re.compile(r"params\[\d+\]|same (model|param)|appears not to match|number of params")
_CONSTRUCTOR = ("_verify_param_shape_across_processes", "_sync_module_states")
_SAVING = re.compile(r"save|checkpoint|state_dict")


@dataclass(frozen=True)
class Cause:
    """id: of CATALOG. line: where it is in the user's code."""

    id: str
    ranks: list[int]
    message: str
    advice: str
    line: Frame | None = None


def causes(ranks: Sequence[RankState], first_difference: str) -> list[Cause]:
    """The causes that the states of a job's ranks allow, the likeliest first; at most two.

    first_difference: the first recorded call that differs, as a sentence.
    """
    found = [*_of_errors(ranks), *_of_kinds(ranks), *_of_paths(ranks)]
    waiting = [state for state in ranks if state.collective]
    if first_difference and not found and waiting:
        found = [_cause("calls-differ", waiting[:1], first_difference)]
    return found[:2]


def _cause(id: str, ranks: Sequence[RankState], message: str, line: Frame | None = None) -> Cause:
    numbers = [state.rank for state in ranks]
    text = f"{name_ranks(numbers)} {message}"
    return Cause(id, numbers, text, CATALOG[id], line or ranks[0].line)


def _of_errors(ranks: Sequence[RankState]) -> Iterator[Cause]:
    """Of ranks that have ended with an exception or a crash, the first that did not lose a peer."""
    constructing = [s for s in ranks if any(f.function in _CONSTRUCTOR for f in _frames(s))]
    failed = sorted((s for s in ranks if s.error), key=lambda state: state.error.time)  # type: ignore[union-attr]
    first = [state for state in failed if not _LOST_PEER.search(state.detail)][:1]
    if any(_PARAMETERS.search(state.detail) for state in failed) or (
        constructing
        and len({state.line for state in constructing}) < len(ranks) > 1
        and any(state.kind in (model.COLLECTIVE, model.FAILED) for state in constructing)
    ):
        subject = [s for s in first or constructing if s in constructing] or constructing
        if subject:
            yield _cause("parameters-differ", subject[:1], _parameter_difference(ranks, subject[0]))
            return
    for state in first:
        error, frames = state.error, _frames(state)
        functions = [frame.function for frame in frames]
        guarded = _guarded(state)
        if error is None:
            continue
        if "bootstrapping phase" in error.message:
            yield _cause("launch-in-init", first, "starts processes while the program is imported")
        elif error.type == "FileExistsError" and {"makedirs", "mkdir"} & set(functions):
            yield _cause(
                "makedirs-race", first, f"found that another rank had made it: {error.message}"
            )
        elif "out of memory" in error.message:
            yield _cause("out-of-memory", first, f"failed: {error.type}: {error.message[:200]}")
        elif guarded and any("torch/distributed" in frame.file for frame in frames):
            yield guarded
        else:
            yield _cause("rank-failed", first, f"failed first: {state.detail[:300]}")


def _of_kinds(ranks: Sequence[RankState]) -> Iterator[Cause]:
    """Of ranks that do not come to the collective in which others wait."""
    ids = {
        model.STOPPED: "rank-stopped",
        model.DEBUGGER: "breakpoint",
        model.DISK: "stuck-file",
        model.EXCEPTION: "exception-handled",
    }
    for state in ranks:
        if state.kind in ids:
            yield _cause(ids[state.kind], [state], f"is {describe_kind(state)}")
        elif state.kind == model.DATA_LOADER and state.workers:
            yield _cause("stuck-data-loader", [state], describe_kind(state))
    waiting = [state for state in ranks if state.kind in (model.COLLECTIVE, model.FAILED)]
    gone = [state for state in ranks if state.kind == model.GONE]
    if not gone or not waiting or any(s.error and not _LOST_PEER.search(s.detail) for s in waiting):
        return
    ended = [state for state in gone if state.detail.startswith(model.ENDED)]
    if not ended:
        yield _cause("rank-gone", gone, gone[0].detail, waiting[0].line)
        return
    line = waiting[0].line
    id = "uneven-batches" if line and source.loop_end(line) else "early-exit"
    yield _cause(
        id, ended, f"{ended[0].detail}; {name_ranks([s.rank for s in waiting])} did not", line
    )


def _of_paths(ranks: Sequence[RankState]) -> Iterator[Cause]:
    """Of ranks that wait in different collectives, by the lines that led there."""
    waiting = [state for state in ranks if state.kind == model.COLLECTIVE]
    paths = {state.line for state in waiting}
    if len(paths) < 2 and len(waiting) == len(ranks):
        return
    for state in sorted(waiting, key=lambda s: sum(other.line == s.line for other in waiting)):
        guarded = _guarded(state)
        if guarded:
            yield guarded
            return
    for here, there in ((a, b) for a in waiting for b in waiting if a.line != b.line):
        for frame in _user_frames(here):
            beyond = [f for f in _user_frames(there) if _is_same_function(f, frame)]
            end = source.loop_end(frame)
            if end and beyond and beyond[0].line > end:
                text = f"has left the loop in which {name_ranks([here.rank])} still waits"
                yield _cause("uneven-batches", [there], text, frame)
                return
        inner = _user_frames(here)[:1]
        outer = [frame.function for frame in _user_frames(there)]
        returned = source.early_return(inner[0]) if inner else 0
        if returned and inner[0].function not in outer:
            line = _line(inner[0], returned)
            yield _cause("early-return", [there], f"returned from {line.function} before it", line)
            return
    for state in waiting:
        lines = source.guarded_collectives(state.line.file) if state.line else []
        if lines and state.line:
            text = "has made a collective that other ranks did not make"
            yield _guard_cause(state, _line(state.line, lines[0]), text)
            return


def _guarded(state: RankState) -> Cause | None:
    """The cause if a line on the rank's stack is below a condition on a rank."""
    for frame in _user_frames(state):
        condition = source.rank_condition(frame)
        if condition:
            return _guard_cause(state, frame, f"is here alone, because of `if {condition}`")
    return None


def _guard_cause(state: RankState, line: Frame, text: str) -> Cause:
    is_saving = any(_SAVING.search(frame.function) for frame in _frames(state))
    id = "checkpoint-on-one-rank" if is_saving else "collective-on-one-rank"
    return _cause(id, [state], text, line)


def _parameter_difference(ranks: Sequence[RankState], subject: RankState) -> str:
    """Which parameters of a rank differ from another's, by name and shape where both are known."""
    for other in ranks:
        if other.parameters and subject.parameters and other.parameters != subject.parameters:
            names = [*subject.parameters, *other.parameters]
            different = [n for n in names if subject.parameters.get(n) != other.parameters.get(n)]
            shapes = [
                f"{name} {subject.parameters.get(name, 'absent')} (rank {other.rank}: "
                f"{other.parameters.get(name, 'absent')})"
                for name in dict.fromkeys(different)
            ]
            return f"gives DDP another model: {', '.join(shapes[:4])}"
    if subject.error:
        return f"gives DDP another model: {subject.error.message[:300]}"
    return (
        "waits in DDP's constructor for ranks whose parameters differ, or that did not come there"
    )


def describe_kind(state: RankState) -> str:
    texts = {
        model.DISK: "waiting for",
        model.STOPPED: "stopped",
        model.DEBUGGER: "in a debugger:",
        model.EXCEPTION: "handling an exception",
        model.DATA_LOADER: "waits for its DataLoader:",
    }
    return f"{texts.get(state.kind, state.kind)} {state.detail}"


def _frames(state: RankState) -> list[Frame]:
    frames = state.error.frames if state.error else main_thread(state.threads).frames
    return [frame for frame in frames if frame.line]


def _user_frames(state: RankState) -> list[Frame]:
    return [frame for frame in _frames(state) if frame.is_user]


def _is_same_function(one: Frame, other: Frame) -> bool:
    return (one.file, one.function) == (other.file, other.function)


def _line(frame: Frame, line: int) -> Frame:
    from .stacks import frame_at

    return frame_at(frame.function, frame.file, line, "")
