"""Who is blamed when a run must end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.comm import processes
from provision_runtime.comm.store import StoreClient
from provision_runtime.smoke import last_states, outcome, postmortem
from tests.unit.runtime.smoke.builders import log_of, rank_env


def at(
    phase: str, exchanges: int, collectives: int, step: str = "barrier", in_collective: bool = False
) -> postmortem.Position:
    return postmortem.Position(phase, exchanges, collectives, step, in_collective)


def state_of(rank: int, position: postmortem.Position, **fields: Any) -> postmortem.LastState:
    usual: dict[str, Any] = {
        "run": "run",
        "host": "node1",
        "reason": "",
        "calls": [],
        "outcome": outcome.Outcome(),
        "stack": [],
    }
    return postmortem.LastState(rank=rank, position=position, **{**usual, **fields})


def evidence_of(
    *positions: postmortem.Position | None,
    last_phase: str = "",
    process_state: str = "",
    outcomes: dict[int, outcome.Outcome] | None = None,
) -> postmortem.PostmortemEvidence:
    """A state from every rank that has a position; of the others only their last phase and their
    process_state."""
    evidence = postmortem.PostmortemEvidence()
    for rank, position in enumerate(positions):
        if position is not None:
            names = ["barrier"] * (position.collectives - 1) + [position.step]
            calls = log_of(*names).latest() if position.collectives else []
            left = (outcomes or {}).get(rank, outcome.Outcome())
            evidence.last_states[rank] = state_of(rank, position, calls=calls, outcome=left)
            continue
        if last_phase:
            evidence.locations[rank] = postmortem.Location(last_phase, "node1", [], "run")
        if process_state:
            evidence.process_states[rank] = process_state
    return evidence


def blamed(
    evidence: postmortem.PostmortemEvidence, world_size: int, cause: str = "deadline-passed"
) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (finding.id, finding.ranks)
        for finding in postmortem.blame(evidence, world_size, "did not end", cause)
    ]


def test_rank_behind_is_blamed() -> None:
    evidence = evidence_of(
        at("barrier", 3, 7, in_collective=True), at("barrier", 3, 6, "begin barrier")
    )
    assert blamed(evidence, 2) == [("rank-stuck", (1,))]


def test_rank_that_skipped_a_collective_is_blamed_though_ahead() -> None:
    evidence = evidence_of(at("barrier", 3, 56, in_collective=True), at("barrier", 4, 55))
    assert blamed(evidence, 2) == [("collective-skipped", (1,))]


def test_ranks_in_different_collectives_are_distinguished() -> None:
    evidence = evidence_of(
        at("barrier", 3, 7, "barrier", True), at("barrier", 3, 7, "all_reduce", True)
    )
    assert blamed(evidence, 2) == [("collective-mismatch", (1,))]


@pytest.mark.parametrize(
    ("last_phase", "process_state", "expected"),
    [
        ("", "", "rank-missing"),
        ("barrier", "", "rank-silent"),
        ("barrier", processes.UNKNOWN, "rank-silent"),
        ("barrier", processes.GONE, "rank-died"),
        ("barrier", processes.STOPPED, "rank-stopped"),
    ],
)
def test_silent_rank_is_named_with_its_fate(
    last_phase: str, process_state: str, expected: str
) -> None:
    evidence = evidence_of(
        at("barrier", 3, 7), None, last_phase=last_phase, process_state=process_state
    )
    assert blamed(evidence, 2) == [(expected, (1,))]


def test_killed_for_want_of_memory_is_called_that() -> None:
    evidence = evidence_of(
        at("barrier", 3, 7), None, last_phase="barrier", process_state=processes.GONE
    )
    evidence.oom_kills = {1: 1}
    assert blamed(evidence, 2) == [("rank-oom-killed", (1,))]
    evidence.oom_kills = {1: 0}
    assert blamed(evidence, 2) == [("rank-died", (1,))]


def test_consequence_of_another_ranks_end_is_no_finding() -> None:
    closed = {0: outcome.with_finding("backend-error", "connection closed", broken=True)}
    evidence = evidence_of(
        at("barrier", 3, 7),
        None,
        last_phase="barrier",
        process_state=processes.GONE,
        outcomes=closed,
    )
    assert blamed(evidence, 2) == [("rank-died", (1,))]


def test_rank_that_left_with_an_error_is_the_cause() -> None:
    left = {1: outcome.with_finding("checkpoint-failed", "no space", broken=True)}
    evidence = evidence_of(
        at("checkpoint", 9, 7, in_collective=True), at("checkpoint", 9, 7), outcomes=left
    )
    assert blamed(evidence, 2) == [("checkpoint-failed", (1,))]


def test_backend_error_is_the_cause_if_the_others_only_wait() -> None:
    raised = {0: outcome.with_finding("backend-error", "out of memory", broken=True)}
    waiting = evidence_of(
        at("collectives", 3, 7), at("collectives", 3, 8, in_collective=True), outcomes=raised
    )
    assert blamed(waiting, 2) == [("backend-error", (0,))]
    alive = evidence_of(
        at("collectives", 3, 7),
        None,
        last_phase="collectives",
        process_state=processes.ALIVE,
        outcomes=raised,
    )
    assert blamed(alive, 2) == [("backend-error", (0,))]


def test_consequence_of_a_mismatched_collective_is_no_finding() -> None:
    raised = {0: outcome.with_finding("backend-error", "sizes differ", broken=True)}
    evidence = evidence_of(
        at("collectives", 3, 7, "all_reduce"), at("collectives", 3, 7, "broadcast"), outcomes=raised
    )
    assert blamed(evidence, 2) == [("collective-mismatch", (1,))]


def test_leftovers_of_an_earlier_run_are_ignored(tmp_path: Path) -> None:
    earlier, this = rank_env(world_size=1, attempt="0"), rank_env(world_size=1, attempt="1")
    left = {0: outcome.with_finding("disk-full", "full")}
    calls = log_of("barrier").latest()
    state = state_of(0, at("barrier", 1, 1), run=earlier.run, calls=calls, outcome=left[0])
    assert last_states.write_last_state(state, tmp_path, None) is False
    evidence = last_states.collect_evidence(None, tmp_path, earlier, {})
    assert evidence.last_states == {0: state}
    assert last_states.collect_evidence(None, tmp_path, this, {}).last_states == {}
    unknown = {"run": this.run, "rank": 0, "of": "another release"}
    last_states.state_path(tmp_path, 0).write_text(json.dumps(unknown))
    last_states.location_path(tmp_path, 0).write_text(json.dumps(unknown))
    evidence = last_states.collect_evidence(None, tmp_path, this, {})
    assert (evidence.last_states, evidence.locations) == ({}, {})


@pytest.mark.parametrize("content", ["", "[]", "7", "null", '{"run": "run", "ra', '{"run": "run"}'])
def test_a_file_of_another_form_is_ignored(tmp_path: Path, content: str) -> None:
    env = rank_env(0)
    for path in (last_states.state_path(tmp_path, 0), last_states.location_path(tmp_path, 0)):
        path.write_text(content.replace('"run": "run"', f'"run": {json.dumps(env.run)}'))
    evidence = last_states.collect_evidence(None, tmp_path, env, {})
    assert (evidence.last_states, evidence.locations) == ({}, {})


def test_the_store_gets_a_last_state_that_no_folder_takes(tmp_path: Path) -> None:
    written: dict[str, bytes] = {}

    class Store:
        def set(self, key: str, value: str) -> None:
            written[key] = value.encode()

    state = state_of(3, at("barrier", 1, 1))
    assert last_states.write_last_state(state, tmp_path / "gone", StoreClient(Store()))
    assert json.loads(written["last-state/3"])["rank"] == 3


def test_no_blame_if_all_ranks_are_in_one_place() -> None:
    evidence = evidence_of(*[at("barrier", 3, 7)] * 2)
    assert blamed(evidence, 2) == [("deadline-passed", (0, 1))]
    assert blamed(evidence, 2, "time-over") == [("time-over", (0, 1))]


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (evidence_of(at("rendezvous", 0, 1), at("facts", 0, 0)), "facts"),
        (evidence_of(at("rendezvous", 0, 1), None, last_phase="facts"), "facts"),
        (postmortem.PostmortemEvidence(), "rendezvous"),
    ],
)
def test_failing_phase_is_the_last_ranks(
    evidence: postmortem.PostmortemEvidence, expected: str
) -> None:
    assert postmortem.failing_phase(evidence, "rendezvous") == expected
