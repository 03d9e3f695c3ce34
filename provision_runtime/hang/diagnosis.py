"""Judges the ranks of a job: who waits for whom, where calls differ, and the cause. Pure, but for
lines of source that it reads.

What a rank's state alone says is here; what the lines of the user's code say is in `causes`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import field, replace

from ..comm.rank_names import name_ranks
from ..dataclass import frozen
from ..report.findings import has_lost_peer, known_error
from . import causes
from .causes import Cause, make_cause, name_states
from .model import (
    COLLECTIVE,
    DATA_LOADER,
    DEBUGGER,
    DISK,
    ENDED,
    EXCEPTION,
    FAILED,
    GONE,
    RECORD,
    RUNNING,
    STOPPED,
    WAITING,
    Collective,
    RankState,
    Snapshot,
)
from .model import UNKNOWN as UNKNOWN
from .state import GRADIENTS, TRANSFERS

# With UNKNOWN, the verdicts.
HANG, FAILURE, NO_HANG = "hang", "failure", "no-hang"
# The ranks for which others wait come first; nothing but somebody from outside ends the HELD.
HELD = (STOPPED, DEBUGGER, DISK)
OTHERS = (DATA_LOADER, EXCEPTION, RUNNING, WAITING, UNKNOWN)
ORDER = (FAILED, GONE, ENDED, *HELD, *OTHERS, COLLECTIVE)

# Their cause, and the words before the detail of the state.
_KINDS = {
    GONE: ("rank-gone", ""),
    STOPPED: ("rank-stopped", "is stopped "),
    DEBUGGER: ("breakpoint", ""),
    DISK: ("stuck-file", ""),
    DATA_LOADER: ("stuck-data-loader", "waits for its DataLoader: "),
    EXCEPTION: ("exception-handled", "waits "),
    WAITING: ("waits-outside", "waits "),
}

NOT_RECORDED = (
    "DDP's all_reduces of gradients are not in the record, because C++ makes them: the calls of ranks "
    "that differ there are those before and after"
)


@frozen
class Group:
    """Ranks in equal states. is_culprit: the others wait for these."""

    ranks: list[int]
    hosts: list[str]
    kind: str
    text: str
    is_culprit: bool


@frozen
class HangDiagnosis:
    """One job. verdict: `hang`, `failure` (a rank has ended with an error), `no-hang` (nothing hangs,
    as far as seen) or `unknown`. groups: the missing or differing ranks first. differences: of the
    calls of ranks, a sentence each."""

    job: str
    world_size: int
    verdict: str
    summary: str
    groups: list[Group]
    differences: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def diagnose(snapshots: Sequence[Snapshot]) -> list[HangDiagnosis]:
    """One diagnosis per job, from the snapshots of its nodes."""
    jobs: dict[str, list[RankState]] = defaultdict(list)
    for snapshot in snapshots:
        for state in snapshot.ranks:
            jobs[state.job].append(state)
    notes = [note for snapshot in snapshots for note in snapshot.notes]
    return [
        _diagnose(job, ranks, list(dict.fromkeys(notes))) for job, ranks in sorted(jobs.items())
    ]


def _diagnose(job: str, ranks: list[RankState], notes: list[str]) -> HangDiagnosis:
    world_size = max(state.world_size for state in ranks)
    absent = sorted(set(range(world_size)) - {state.rank for state in ranks})
    verdict, summary = _verdict(ranks, absent)
    if absent:
        notes = [*notes, f"{name_ranks(absent)}: on other nodes, or not started; not examined"]
    differences = []
    culprits = []
    cause: Cause | None = None
    if verdict in (HANG, FAILURE):
        differences = _differences(ranks)
        is_recorded = any(call.origin == RECORD for state in ranks for call in state.calls)
        if is_recorded and GRADIENTS in map(_op, ranks):
            notes = [*notes, NOT_RECORDED]
        first = min(ranks, key=lambda state: ORDER.index(state.kind))
        culprits = [first.rank] if first.kind != COLLECTIVE else []
        cause = _cause_of(ranks, "".join(differences[:1]))
        if cause:
            culprits = cause.ranks
    return HangDiagnosis(
        job,
        world_size,
        verdict,
        summary,
        groups=_groups(ranks, culprits),
        differences=differences,
        causes=[cause] if cause else [],
        notes=notes,
    )


def _cause_of(ranks: Sequence[RankState], difference: str) -> Cause | None:
    """The likeliest cause that the states of a job's ranks allow.

    difference: the first recorded call that differs, as a sentence; empty if none does.
    """
    waiting = [state for state in ranks if state.kind in (COLLECTIVE, FAILED)]
    if cause := _of_error(ranks, waiting) or _of_kind(ranks):
        return cause
    if not waiting:
        return None
    # Those of whose line there are few first.
    waiting.sort(key=lambda state: sum(other.line == state.line for other in waiting))
    ended = [state for state in ranks if state.kind == ENDED]
    if cause := causes.of_ended(ended, waiting) or causes.of_constructor(ranks, waiting):
        return cause
    # Calls between two ranks differ on each.
    is_compared = not any(map(causes.BETWEEN_TWO.fullmatch, map(_op, waiting)))
    if is_compared and (cause := causes.of_paths(waiting)):
        return cause
    if difference:
        return make_cause("calls-differ", waiting[:1], difference)
    cause = causes.of_file(waiting[:1]) if is_compared else None
    # All are in one line: which of them made one more is not known.
    return cause and replace(cause, ranks=[], message=f"a rank {causes.ONE_MORE}")


def _of_error(ranks: Sequence[RankState], waiting: list[RankState]) -> Cause | None:
    """Of ranks that have ended with an exception or a crash, the first that did not lose a peer."""
    failed = [state for state in ranks if state.error and not has_lost_peer(state.detail)]
    for state in sorted(failed, key=lambda state: state.error.time if state.error else 0):
        if (id := known_error(state.detail)) == "parameters-differ":
            return make_cause(
                id, [state], f"gives DDP another model: {causes.parameter_difference(state, ranks)}"
            )
        is_collective = any("torch/distributed/" in frame.file for frame in state.frames)
        text, paths = f"failed first: {state.detail[:300]}", None
        if is_collective and not id:
            # Gloo aborts at a message of another size: then paths may tell why.
            paths = causes.of_conditions(state) or causes.of_paths(waiting)
            if state.detail.endswith("Aborted"):
                id = "calls-differ"
                text += " in a collective, as with Gloo where ranks pass other sizes or types"
        return paths or make_cause(id or "rank-failed", [state], text)
    return None


def _of_kind(ranks: Sequence[RankState]) -> Cause | None:
    """Of a rank that does not come to the collective in which others wait."""
    for kind, (id, tokens) in _KINDS.items():
        states = [state for state in ranks if state.kind == kind]
        if states and not (kind == WAITING and any(s.kind == ENDED for s in ranks)):
            # Ranks that are all gone were ended together: none of them is the first.
            blamed = states if kind == GONE else states[:1]
            return make_cause(id, blamed, tokens + states[0].detail)
    return None


def _verdict(ranks: Sequence[RankState], absent: list[int]) -> tuple[str, str]:
    kinds = Counter(state.kind for state in ranks)
    positions = {(state.kind, state.line, _op(state)) for state in ranks}

    def names(*of: str) -> str:
        return name_states(state for state in ranks if state.kind in of)

    if kinds[FAILED]:
        return FAILURE, f"{names(FAILED)} ended with an error"
    if kinds[GONE]:
        is_over = kinds[GONE] + kinds[ENDED] == len(ranks)
        return FAILURE if is_over else HANG, f"{names(GONE)} ended and left no error"
    if any(map(kinds.get, HELD)):
        return HANG, f"the others wait for {names(*HELD)}"
    if kinds[RUNNING]:
        text = f"nothing hangs, as far as seen: {names(RUNNING)} still at work"
        return NO_HANG, text + (", the others wait" if len(positions) > 1 else "")
    if kinds[UNKNOWN]:
        return UNKNOWN, f"{names(UNKNOWN)} could not be read"
    if kinds[ENDED] == len(ranks):
        return NO_HANG, "nothing hangs: the ranks came to their end"
    if len(positions) > 1 or kinds[DATA_LOADER]:
        return HANG, "no rank makes progress"
    if all(state.detail == TRANSFERS for state in ranks):
        return NO_HANG, "nothing hangs, as far as seen: all ranks transfer in the same call"
    if absent or not kinds[COLLECTIVE]:
        return UNKNOWN, "all ranks that were examined wait in the same line"
    return HANG, (
        "all ranks wait in the same call, and nothing moves: compare its arguments (src, dst, group), "
        "then look at the network between them"
    )


def _op(state: RankState) -> str:
    return state.collective.op if state.collective else ""


def _groups(ranks: Sequence[RankState], culprits: list[int]) -> list[Group]:
    folded: dict[tuple[bool, int, str], list[RankState]] = defaultdict(list)
    for state in ranks:
        key = (state.rank not in culprits, ORDER.index(state.kind), _text(state))
        folded[key].append(state)
    ordered = sorted(folded.items(), key=lambda item: (*item[0][:2], len(item[1])))
    return [
        Group(
            ranks=sorted(state.rank for state in states),
            hosts=sorted({state.host for state in states}),
            kind=states[0].kind,
            text=text,
            is_culprit=not is_other,
        )
        for (is_other, _, text), states in ordered
    ]


def _text(state: RankState) -> str:
    """What a rank does, in a line; equal for ranks that do the same."""
    texts = {WAITING: "waits", COLLECTIVE: "waits in"}
    texts[RUNNING] = "" if state.detail else "works"
    detail = describe(state.collective) if state.collective else state.detail[:240]
    line = f", {state.line.text}" if state.line else ""
    return f"{texts.get(state.kind, state.kind + ':')} {detail}".strip() + line


def describe(call: Collective) -> str:
    """`all_reduce #1234 float32[16777216]`, as far as it is known."""
    number = f" #{call.sequence}" if call.sequence else ""
    shape = "" if call.shape is None else f" {call.dtype}{call.shape}"
    return f"{call.op}{number}{shape}{call.group and ' of ' + call.group}"


def _differences(ranks: Sequence[RankState]) -> list[str]:
    """The first recorded call that ranks made differently; and who has made fewer calls."""
    calls: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for state in ranks:
        for call in state.calls:
            if call.sequence is None:
                continue
            number = counts[call.group][state.rank] = call.sequence
            line = f", {call.line.text}" if call.line else ""
            calls[call.group, number][describe(call) + line].append(state.rank)
    different = [texts for _, texts in sorted(calls.items()) if len(texts) > 1]
    sentences = []
    for texts in different[:1]:
        parts = [f"{name_ranks(numbers)}: {text}" for text, numbers in texts.items()]
        sentences.append(f"the first call that differs: {'; '.join(parts)}")
    for count in counts.values():
        most, fewest = max(count.values()), min(count.values())
        behind = [rank for rank in count if count[rank] == fewest]
        if fewest < most:
            sentences.append(f"{name_ranks(behind)} made {most - fewest} fewer than the others")
    return sentences
