"""Who is blamed when a run must end."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.comm import processes
from provision_runtime.smoke import collective_log, last_states, outcome, postmortem


def log_of(*names: str) -> collective_log.CallLog:
    log = collective_log.CallLog()
    for name in names:
        log.log(name)
    return log


def at(
    phase: str, exchanges: int, collectives: int, step: str = "barrier", site: str = ""
) -> postmortem.Position:
    return postmortem.Position(phase, exchanges, collectives, step, site)


def evidence_of(
    *positions: postmortem.Position | None,
    last_state: str = "",
    process_state: str = "",
    outcomes: dict[int, outcome.Outcome] | None = None,
) -> postmortem.PostmortemEvidence:
    """A state from every rank that has a position; of the others only the phase they were seen in and their process_state."""
    evidence = postmortem.PostmortemEvidence()
    for rank, position in enumerate(positions):
        if position is None:
            evidence.locations.update(
                {rank: {"phase": last_state, "host": "node1"}} if last_state else {}
            )
            evidence.process_states.update({rank: process_state} if process_state else {})
            continue
        outcome_of_rank = (outcomes or {}).get(rank, outcome.Outcome())
        log = (
            log_of(*["barrier"] * (position.collectives - 1), position.step).latest()
            if position.collectives
            else []
        )
        evidence.last_states[rank] = last_states.last_state(
            "run", rank, "node1", "", position, log, outcome_of_rank.as_json()
        )
    return evidence


def blamed(
    evidence: postmortem.PostmortemEvidence, world_size: int, cause: str = "deadline-passed"
) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (finding.id, finding.ranks)
        for finding in postmortem.blame(evidence, world_size, "did not end", cause)
    ]


def test_rank_behind_is_blamed() -> None:
    evidence = evidence_of(at("barrier", 3, 7, site="b.py:1"), at("barrier", 3, 6, "begin barrier"))
    assert blamed(evidence, 2) == [("rank-stuck", (1,))]


def test_rank_that_skipped_a_collective_is_blamed_though_ahead() -> None:
    evidence = evidence_of(at("barrier", 3, 56, site="b.py:1"), at("barrier", 4, 55))
    assert blamed(evidence, 2) == [("collective-skipped", (1,))]


def test_ranks_in_different_collectives_are_distinguished() -> None:
    evidence = evidence_of(
        at("barrier", 3, 7, "barrier", "b.py:1"), at("barrier", 3, 7, "all_reduce", "c.py:1")
    )
    assert blamed(evidence, 2) == [("collective-mismatch", (1,))]


@pytest.mark.parametrize(
    ("last_state", "process_state", "expected"),
    [
        ("", "", "rank-missing"),
        ("barrier", "", "rank-silent"),
        ("barrier", processes.UNKNOWN, "rank-silent"),
        ("barrier", processes.GONE, "rank-died"),
        ("barrier", processes.STOPPED, "rank-stopped"),
    ],
)
def test_silent_rank_is_named_with_its_fate(
    last_state: str, process_state: str, expected: str
) -> None:
    evidence = evidence_of(
        at("barrier", 3, 7), None, last_state=last_state, process_state=process_state
    )
    assert blamed(evidence, 2) == [(expected, (1,))]


def test_killed_for_want_of_memory_is_called_that() -> None:
    evidence = evidence_of(
        at("barrier", 3, 7), None, last_state="barrier", process_state=processes.GONE
    )
    evidence.oom_kills = {1: 1}
    assert blamed(evidence, 2) == [("rank-oom-killed", (1,))]
    evidence.oom_kills = {1: 0}
    assert blamed(evidence, 2) == [("rank-died", (1,))]


def test_rank_of_another_host_was_killed_if_a_rank_there_saw_it() -> None:
    elsewhere = {"phase": "ddp", "host": "n2", "process": ["other host", "7", "1"], "oom": None}
    rank_there = {"host": "n2", "oom_kills": 1}
    rank_here = {"host": "n1", "oom_kills": 3}
    locations, ranks = {1: elsewhere}, [1]
    assert last_states.oom_kills(locations, {0: rank_here, 2: rank_there}, ranks) == {1: 1}
    assert last_states.oom_kills(locations, {0: rank_here}, ranks) == {1: 0}
    assert last_states.oom_kills({}, {}, ranks) == {}


def test_consequence_of_another_ranks_end_is_no_finding() -> None:
    closed = {0: outcome.with_finding("backend-error", "connection closed", broken=True)}
    evidence = evidence_of(
        at("barrier", 3, 7),
        None,
        last_state="barrier",
        process_state=processes.GONE,
        outcomes=closed,
    )
    assert blamed(evidence, 2) == [("rank-died", (1,))]


def test_rank_that_left_with_an_error_is_the_cause() -> None:
    left = {1: outcome.with_finding("checkpoint-failed", "no space", broken=True)}
    evidence = evidence_of(
        at("checkpoint", 9, 7, site="c.py:1"), at("checkpoint", 9, 7), outcomes=left
    )
    assert blamed(evidence, 2) == [("checkpoint-failed", (1,))]


def test_backend_error_is_the_cause_if_the_others_only_wait() -> None:
    raised = {0: outcome.with_finding("backend-error", "out of memory", broken=True)}
    waiting = evidence_of(
        at("collectives", 3, 7), at("collectives", 3, 8, site="c.py:1"), outcomes=raised
    )
    assert blamed(waiting, 2) == [("backend-error", (0,))]
    alive = evidence_of(
        at("collectives", 3, 7),
        None,
        last_state="collectives",
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
    state = last_states.last_state(
        "earlier", 0, "node1", "", at("barrier", 1, 1), [], outcome.Outcome().as_json()
    )
    assert last_states.write_last_state(state, tmp_path, None) is False
    assert (
        last_states.collect_evidence(None, tmp_path, 1, {}, "earlier").last_states[0]["run"]
        == "earlier"
    )
    assert last_states.collect_evidence(None, tmp_path, 1, {}, "this").last_states == {}


def test_no_blame_if_all_ranks_are_in_one_place() -> None:
    evidence = evidence_of(*[at("barrier", 3, 7)] * 2)
    assert blamed(evidence, 2) == [("deadline-passed", (0, 1))]
    assert blamed(evidence, 2, "time-over") == [("time-over", (0, 1))]


def test_rank_that_reaches_only_the_disk_lost_its_link() -> None:
    evidence = evidence_of(*[at("barrier", 3, 7)] * 2)
    evidence.cut_off = [1]
    assert blamed(evidence, 2) == [("link-lost", (1,))]


def test_failing_phase_is_the_last_ranks() -> None:
    assert (
        postmortem.failing_phase(
            evidence_of(at("rendezvous", 0, 1), at("facts", 0, 0)), "rendezvous"
        )
        == "facts"
    )
    assert (
        postmortem.failing_phase(
            evidence_of(at("rendezvous", 0, 1), None, last_state="facts"), "rendezvous"
        )
        == "facts"
    )
    assert postmortem.failing_phase(postmortem.PostmortemEvidence(), "rendezvous") == "rendezvous"
