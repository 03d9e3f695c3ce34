"""Judges the ranks of a job: who waits for whom, where calls differ, and the cause. Pure, but for
lines of source that it reads."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..comm.rank_names import name_ranks
from . import causes, model
from .causes import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import Collective, Frame, RankState, Snapshot

HANG, FAILURE, NO_HANG, UNKNOWN = "hang", "failure", "no-hang", "unknown"
# The ranks for which others wait come first.
ORDER = (
    model.FAILED,
    model.GONE,
    model.STOPPED,
    model.DEBUGGER,
    model.DISK,
    model.DATA_LOADER,
    model.EXCEPTION,
    model.RUNNING,
    model.WAITING,
    model.UNKNOWN,
    model.COLLECTIVE,
)
# Nothing ends these but somebody from outside.
HELD = (model.STOPPED, model.DEBUGGER, model.DISK)


@dataclass(frozen=True)
class Group:
    """Ranks in equal states. is_culprit: the others wait for these."""

    ranks: list[int]
    hosts: list[str]
    kind: str
    text: str
    line: Frame | None = None
    collective: Collective | None = None
    is_culprit: bool = False


@dataclass(frozen=True)
class Diagnosis:
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


def diagnose(snapshots: Sequence[Snapshot]) -> list[Diagnosis]:
    """One diagnosis per job, from the snapshots of its nodes."""
    jobs: dict[str, list[RankState]] = {}
    for snapshot in snapshots:
        for state in snapshot.ranks:
            jobs.setdefault(state.job, []).append(state)
    notes = list(dict.fromkeys(note for snapshot in snapshots for note in snapshot.notes))
    return [_diagnose(job, ranks, notes) for job, ranks in sorted(jobs.items())]


def _diagnose(job: str, ranks: list[RankState], notes: list[str]) -> Diagnosis:
    world_size = max(state.world_size for state in ranks)
    missing = sorted(set(range(world_size)) - {state.rank for state in ranks})
    verdict, summary = _verdict(ranks, missing)
    differences = _differences(ranks)
    is_stuck = verdict in (HANG, FAILURE)
    found = causes.causes(ranks, "".join(differences[:1])) if is_stuck else []
    if missing:
        notes = [*notes, f"{name_ranks(missing)}: on other nodes, or not started; not examined."]
    return Diagnosis(
        job=job,
        world_size=world_size,
        verdict=verdict,
        summary=summary,
        groups=_groups(ranks, found[0].ranks if found else [], verdict),
        differences=differences if is_stuck else [],
        causes=found,
        notes=notes,
    )


def _verdict(ranks: Sequence[RankState], missing: list[int]) -> tuple[str, str]:
    def numbers(*kinds: str) -> list[int]:
        return [state.rank for state in ranks if state.kind in kinds]

    live = [state for state in ranks if state.kind not in (model.FAILED, model.GONE)]
    killed = [
        s.rank for s in ranks if s.kind == model.GONE and not s.detail.startswith(model.ENDED)
    ]
    failed, running = numbers(model.FAILED), numbers(model.RUNNING)
    if failed:
        return FAILURE, f"{name_ranks(failed)} ended with an error"
    if killed:
        return (HANG if live else FAILURE), f"{name_ranks(killed)} ended without a word"
    if not live:
        return NO_HANG, "all ranks came to their end by themselves"
    if numbers(*HELD):
        return HANG, f"the others wait for {name_ranks(numbers(*HELD))}"
    if running:
        rest = len(live) - len(running)
        text = f"{name_ranks(running)} work" + ("s" if len(running) == 1 else "")
        return NO_HANG, f"nothing hangs, as far as seen: {text}" + (
            ", the others wait" if rest else ""
        )
    if numbers(model.UNKNOWN):
        return UNKNOWN, f"{name_ranks(numbers(model.UNKNOWN))} could not be read"
    waits = {(state.kind, state.line, _op(state)) for state in ranks}
    if len(waits) > 1 or numbers(model.DATA_LOADER, model.EXCEPTION) or len(live) < len(ranks):
        return HANG, "no rank goes on"
    if missing:
        return UNKNOWN, "the ranks here all wait in the same call, for ranks that were not examined"
    if not numbers(model.COLLECTIVE):
        return UNKNOWN, "all ranks wait at the same line, in no collective"
    if any(state.detail for state in ranks):
        return (
            NO_HANG,
            "nothing hangs, as far as seen: all ranks are in the same call, and transfer",
        )
    return (
        HANG,
        "all ranks wait in the same call, and nothing moves: look at the network between them",
    )


def _op(state: RankState) -> str:
    return state.collective.op if state.collective else ""


def _groups(ranks: Sequence[RankState], culprits: list[int], verdict: str) -> list[Group]:
    folded: dict[tuple[bool, int, str], list[RankState]] = {}
    for state in ranks:
        key = (state.rank not in culprits, ORDER.index(state.kind), _text(state))
        folded.setdefault(key, []).append(state)
    ordered = sorted(folded.items(), key=lambda item: (*item[0][:2], len(item[1])))
    groups: list[Group] = []
    for (is_other, _, text), states in ordered:
        is_first = not culprits and not groups and len(folded) > 1
        group = Group(
            ranks=sorted(state.rank for state in states),
            hosts=sorted({state.host for state in states}),
            kind=states[0].kind,
            text=text,
            line=states[0].line,
            collective=states[0].collective,
            is_culprit=verdict in (HANG, FAILURE) and (not is_other or is_first),
        )
        groups.append(group)
    return groups


def _text(state: RankState) -> str:
    """What a rank does, in a line; equal for ranks that do the same."""
    line = f", {brief(state.line)}" if state.line else ""
    if state.kind == model.COLLECTIVE and state.collective:
        return f"waits in {describe(state.collective)}{line}"
    texts = {
        model.RUNNING: f"works{line}",
        model.WAITING: f"waits {state.detail}{line}",
        model.FAILED: f"failed{line}: {state.detail[:240]}",
        model.GONE: state.detail,
        model.UNKNOWN: f"unknown: {state.detail}",
    }
    return texts.get(state.kind) or f"{causes.describe_kind(state)}{line}"


def describe(call: Collective) -> str:
    """`all_reduce #1234 float32[16777216]`, as far as it is known."""
    number = f" #{call.sequence}" if call.sequence else ""
    group = f" of {call.group}" if call.group else ""
    shape = "" if call.shape is None else f" {call.dtype}{call.shape}"
    return f"{call.op}{number}{shape}{group}"


def brief(line: Frame) -> str:
    source = f" `{line.source[:60]}`" if line.source else ""
    return f"{os.path.basename(line.file)}:{line.line}{source}"


def _differences(ranks: Sequence[RankState]) -> list[str]:
    """The first call of each group that ranks made differently, then who has made fewer calls."""
    calls: dict[tuple[str, int], dict[str, list[int]]] = {}
    counts: dict[str, dict[int, int]] = {}
    for state in ranks:
        for call in state.calls:
            if call.sequence is not None:
                text = f"{describe(call)}{', ' + brief(call.line) if call.line else ''}"
                calls.setdefault((call.group, call.sequence), {}).setdefault(text, []).append(
                    state.rank
                )
                counts.setdefault(call.group, {})[state.rank] = call.sequence
    sentences: dict[str, str] = {}
    for (group, _), texts in sorted(calls.items()):
        if len(texts) > 1 and group not in sentences:
            parts = [f"{name_ranks(numbers)}: {text}" for text, numbers in texts.items()]
            sentences[group] = f"the first call that differs: {'; '.join(parts)}"
    result = list(sentences.values())
    for count in counts.values():
        fewest, most = min(count.values()), max(count.values())
        behind = [rank for rank, number in count.items() if number == fewest]
        if fewest < most:
            result.append(f"{name_ranks(behind)} made {most - fewest} calls fewer than the others")
    return result
