"""The smoke test's pure parts: options, place, outcomes, meetings, blame, numbers and merges."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.checkpoint import layout
from provision_runtime.comm import processes
from provision_runtime.comm import store as meeting
from provision_runtime.comm.ranks import name_ranks
from provision_runtime.facts import libraries
from provision_runtime.report import model
from provision_runtime.smoke import (
    clock_skew as clock,
)
from provision_runtime.smoke import (
    collective_log,
    findings,
    launcher,
    options,
    outcome,
    peers,
    postmortem,
    progress,
    sockets,
    timing,
)
from provision_runtime.smoke import phases as all_phases
from provision_runtime.smoke import (
    rank_env as place,
)
from provision_runtime.smoke.phases import barrier, rendezvous

RANK_ENVIRONMENT = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}


def chosen(*arguments: str) -> options.Options:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return options.from_namespace(parser.parse_args(["--out", "out", *arguments]))


# options


def test_paths_are_made_absolute_and_checkpoints_go_to_the_out_folder() -> None:
    given = chosen()
    assert given.out == Path.cwd() / "out"
    assert given.checkpoint_dir == given.out
    assert chosen("--checkpoint-dir", "/shared").checkpoint_dir == Path("/shared")


def test_faults_are_parsed() -> None:
    given = chosen("--inject", "die:1:barrier", "--inject", "flip-bit", "--inject", "wrong-value:0")
    assert given.fault("die", 1, "barrier")
    assert given.fault("flip-bit")
    assert given.fault("wrong-value", 0)
    assert not given.fault("die", 0, "barrier")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("explode", "no such fault: 'explode'; there are absent:RANK"),
        ("die:1", "no such fault"),
        ("die:one:barrier", "'one' is not a rank"),
        ("die:-1:barrier", "'-1' is not a rank"),
        ("hang:1:lunch", "no such phase; there are facts, rendezvous"),
    ],
)
def test_a_wrong_fault_lists_the_right_ones(text: str, complaint: str) -> None:
    with pytest.raises(options.UsageError, match=complaint):
        options.parse_fault(text)


def test_a_fault_for_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(options.UsageError, match="no rank 2 among 2"):
        options.check_faults(chosen("--inject", "wrong-value:2"), 2)


def test_deadlines_for_a_phase_go_before_those_for_all() -> None:
    given = chosen("--deadline", "20", "--deadline", "barrier=5")
    assert [given.deadline_s(phase, 60) for phase in ("facts", "barrier")] == [20, 5]
    assert chosen().deadline_s("facts", 60) == 60


@pytest.mark.parametrize("text", ["0", "-1", "soon", "lunch=3", "barrier=", "nan"])
def test_a_wrong_deadline_is_refused(text: str) -> None:
    with pytest.raises(options.UsageError, match="--deadline"):
        options.parse_deadline(text)


def test_phases_are_left_out_or_chosen() -> None:
    assert chosen("--skip", "ddp").planned == tuple(
        phase for phase in options.PHASES if phase != "ddp"
    )
    assert chosen("--only", "barrier").planned == ("facts", "rendezvous", "barrier")
    assert chosen("--only", "facts").planned == ("facts",)
    assert (chosen("--quick").profile, chosen("--full").profile) == ("quick", "full")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--skip", "rendezvous"),
        ("--skip", "barrier", "--inject", "die:1:barrier"),
        ("--only", "facts", "--inject", "hang:0:ddp"),
        ("--skip", "ddp", "--inject", "wrong-shape:1"),
    ],
)
def test_what_proves_nothing_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(options.UsageError, match=r"nothing can be tested without it|is skipped"):
        chosen(*arguments)


def test_the_phases_that_options_name_are_those_that_run() -> None:
    assert tuple(phase.name for phase in all_phases.ALL) == options.PHASES


# place


def test_without_rank_nobody_started_us() -> None:
    assert place.from_environment({"MASTER_ADDR": "node1"}) is None


def test_place_of_a_slurm_rank() -> None:
    found = place.from_environment(RANK_ENVIRONMENT)
    assert found is not None
    assert (found.rank, found.world_size, found.master_port) == (1, 4, 29500)
    assert (found.all_local, found.launched, found.store_is_hosted) == (False, False, False)


def test_place_of_a_torchrun_rank() -> None:
    torchrun = {
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    found = place.from_environment({**RANK_ENVIRONMENT, **torchrun})
    assert found is not None
    assert (found.all_local, found.store_is_hosted, found.attempt) == (True, True, "2")


def test_half_an_environment_is_refused() -> None:
    with pytest.raises(
        options.UsageError, match="WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"
    ):
        place.from_environment({"RANK": "0"})
    with pytest.raises(options.UsageError, match="MASTER_PORT='x'"):
        place.from_environment({**RANK_ENVIRONMENT, "MASTER_PORT": "x"})


# outcome


def test_a_failure_on_any_rank_is_the_phases_and_names_the_rank() -> None:
    folded = outcome.fold(
        [outcome.Outcome(message="fine"), outcome.found("wrong-value", "too hot")]
    )
    assert (folded.verdict, outcome.in_words(folded)) == ("fail", "rank 1: too hot")
    assert folded.findings == (outcome.Finding("wrong-value", "too hot", (1,)),)


def test_a_finding_brings_the_advice_of_its_rule_unless_it_has_its_own() -> None:
    assert (
        outcome.Finding("wrong-value", "").reported().advice
        == findings.CATALOG["wrong-value"].advice
    )
    assert outcome.Finding("wrong-value", "", (), "cool it").reported().advice == "cool it"


def test_ranks_that_say_the_same_are_named_together() -> None:
    said = [outcome.found("wrong-value", text) for text in ("a", "b", "a")]
    assert [str(finding) for finding in outcome.fold(said).findings] == [
        "ranks 0, 2: a",
        "rank 1: b",
    ]
    assert name_ranks(list(range(6))) == "ranks 0, 1, 2, 3 and 2 more"


def test_a_warning_leaves_the_phase_its_own_words() -> None:
    warned = outcome.Outcome("50 barriers", (outcome.Finding("slow-rank", "waited for", (1,)),))
    assert (warned.verdict, outcome.in_words(warned)) == ("warn", "50 barriers")


def test_one_broken_rank_breaks_the_phase() -> None:
    assert outcome.fold(
        [outcome.Outcome(), outcome.found("store-lost", "gone", broken=True)]
    ).broken


def test_an_outcome_survives_the_store() -> None:
    said = outcome.found("wrong-value", "too hot", [3], "cool it", {"size": 8}, broken=True)
    assert outcome.from_json(json.loads(json.dumps(said.as_json()))) == said


def test_every_rule_has_a_verdict_that_reports_know_and_says_what_to_do() -> None:
    for name, rule in findings.CATALOG.items():
        assert rule.verdict in model.WORST_FIRST[:3], name
        assert rule.meaning, name
        assert rule.advice, name


def test_the_guesses_of_gloo_are_cut_from_its_errors() -> None:
    text = "[/a/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:68.\n This is typically caused by a crash. GLHF!"
    assert (
        outcome.error_in_words(RuntimeError(text))
        == "RuntimeError: Connection closed by peer [127.0.0.1]:68"
    )


# meeting


class Store:
    """A dictionary with the two calls of a c10d store that we use."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.held[key] = value.encode()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        assert expected == desired == meeting.ABSENT
        return self.held.get(key, expected.encode())


class Gone:
    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Broken pipe")

    compare_set = set


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def seat(store: Any, rank: int, clock: Clock, world_size: int = 2) -> meeting.StoreAllGather:
    return meeting.StoreAllGather(
        meeting.StoreClient(store), rank, world_size, clock.read, clock.sleep
    )


def answered(store: Store, name: str, **payloads: Any) -> None:
    """What other ranks already said at the first meeting."""
    for rank, payload in payloads.items():
        store.set(f"exchange/1/{name}/{rank[1:]}", json.dumps({"payload": payload}))


def test_every_rank_learns_what_all_said_in_rank_order() -> None:
    store, clock = Store(), Clock()
    answered(store, "hello", _1={"host": "b"})
    assert seat(store, 0, clock).exchange("hello", None, 5) == [None, {"host": "b"}]
    assert seat(store, 1, clock).exchange("hello", {"host": "b"}, 5) == [None, {"host": "b"}]


def test_a_rank_that_says_nothing_is_named_on_every_rank() -> None:
    store, clock = Store(), Clock()
    answered(store, "hello", _2="here")
    for rank, said in ((0, "first"), (2, "here")):
        with pytest.raises(meeting.RanksMissing, match="rank 1 did not answer at hello") as missing:
            seat(store, rank, clock, 3).exchange("hello", said, 5)
        assert missing.value.payloads == {0: "first", 2: "here"}
    assert 5 <= clock.now < 6


def test_after_bad_news_the_others_are_not_waited_for_long() -> None:
    clock = Clock()
    with pytest.raises(meeting.RanksMissing):
        seat(Store(), 0, clock).exchange("phase", "bad", 600, lambda said: said == "bad")
    assert clock.now < meeting.GRACE_S + 1


def test_a_silent_rank_0_is_named() -> None:
    with pytest.raises(meeting.RanksMissing, match="rank 0 did not answer"):
        seat(Store(), 1, Clock()).exchange("hello", "here", 5)


def test_meetings_of_one_name_are_kept_apart() -> None:
    store, clock = Store(), Clock()
    here = seat(store, 0, clock, 1)
    assert [here.exchange("again", turn, 5) for turn in (1, 2)] == [[1], [2]]


def test_a_store_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(meeting.StoreLost, match="Broken pipe"):
        seat(Gone(), 0, Clock()).exchange("hello", 1, 5)


def test_only_rank_0_waits_for_the_others_to_leave_and_not_for_ever() -> None:
    clock = Clock()
    seat(Store(), 1, clock).leave(5)
    assert clock.now == 0
    seat(Store(), 0, clock, 64).leave(5)
    assert 5 <= clock.now < 6


def test_who_leaves_a_phase_is_not_waited_for() -> None:
    store, clock = Store(), Clock()
    store.set("abandoned/barrier", "1")
    for rank in (0, 2):
        with pytest.raises(meeting.PhaseAbandoned, match="rank 1 left the phase"):
            seat(store, rank, clock, 3).exchange("hello", None, 60, abort_key="abandoned/barrier")
    assert clock.now < 1


def test_at_the_end_of_a_phase_ranks_meet_however_many_meetings_they_had() -> None:
    store, clock = Store(), Clock()
    ahead, behind = seat(store, 1, clock), seat(store, 0, clock)
    with pytest.raises(meeting.RanksMissing):
        ahead.exchange("only one came", None, 0.1)
    with pytest.raises(meeting.RanksMissing):
        ahead.exchange_once("barrier", "early", 0.1)
    assert behind.exchange_once("barrier", "late", 5) == ["late", "early"]


# calls


def log_of(*names: str) -> collective_log.CallLog:
    log = collective_log.CallLog()
    for name in names:
        log.note(name)
    return log


def differing(*logs: collective_log.CallLog) -> outcome.Finding | None:
    return collective_log.compare({rank: log.latest() for rank, log in enumerate(logs)})


def test_ranks_with_the_same_calls_do_not_differ() -> None:
    assert log_of("barrier", "all_reduce 8").summary == log_of("barrier", "all_reduce 8").summary
    assert differing(log_of("barrier"), log_of("barrier")) is None


def test_a_rank_in_another_collective_is_named_with_both_call_sites() -> None:
    logs = [
        log_of("barrier", "all_reduce 8"),
        log_of("barrier", "broadcast 8"),
        log_of("barrier", "all_reduce 8"),
    ]
    assert logs[0].summary != logs[1].summary
    found = differing(*logs)
    assert found is not None
    assert (found.id, found.ranks) == ("collective-mismatch", (1,))
    assert found.message.startswith("collective 2 is broadcast 8 (")
    assert found.message.count("in log_of < ") == 2


def test_a_rank_with_fewer_calls_left_one_out() -> None:
    found = differing(log_of("barrier"), log_of("barrier", "barrier"), log_of("barrier", "barrier"))
    assert found is not None
    assert (found.id, found.ranks) == ("collective-skipped", (0,))


@given(st.lists(st.sampled_from("ab"), max_size=400), st.integers(0, 400), st.integers(0, 2))
def test_one_changed_call_is_found_wherever_it_is_remembered(
    names: list[str], place: int, rank: int
) -> None:
    changed = [*names[:place], "c", *names[place + 1 :]] if place < len(names) else [*names, "c"]
    logs = [log_of(*(changed if which == rank else names)) for which in range(3)]
    assert logs[rank].summary != logs[(rank + 1) % 3].summary
    remembered = place >= len(names) - collective_log.REMEMBERED
    found = differing(*logs)
    if remembered:
        assert found is not None
        if place < len(names):
            assert (found.id, found.ranks) == ("collective-mismatch", (rank,))


# ending


def at(
    phase: str, meetings: int, collectives: int, step: str = "barrier", site: str = ""
) -> postmortem.Position:
    return postmortem.Position(phase, meetings, collectives, step, site)


def known(
    *standing: postmortem.Position | None,
    seen: str = "",
    fate: str = "",
    outcomes: dict[int, outcome.Outcome] | None = None,
) -> postmortem.Known:
    """A word from every rank that has a position; of the others only the phase they were seen in and their fate."""
    told = postmortem.Known()
    for rank, position in enumerate(standing):
        if position is None:
            told.seen.update({rank: {"phase": seen, "host": "node1"}} if seen else {})
            told.fates.update({rank: fate} if fate else {})
            continue
        said = (outcomes or {}).get(rank, outcome.Outcome())
        log = (
            log_of(*["barrier"] * (position.collectives - 1), position.step).latest()
            if position.collectives
            else []
        )
        told.words[rank] = postmortem.describe(
            "run", rank, "node1", "", position, log, said.as_json()
        )
    return told


def judged(
    told: postmortem.Known, world_size: int, cause: str = "deadline-passed"
) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (finding.id, finding.ranks)
        for finding in postmortem.judge(told, world_size, "did not end", cause)
    ]


def test_the_rank_behind_is_blamed() -> None:
    told = known(at("barrier", 3, 7, site="b.py:1"), at("barrier", 3, 6, "begin barrier"))
    assert judged(told, 2) == [("rank-stuck", (1,))]


def test_the_rank_that_left_out_a_collective_is_blamed_though_it_is_ahead() -> None:
    told = known(at("barrier", 3, 56, site="b.py:1"), at("barrier", 4, 55))
    assert judged(told, 2) == [("collective-skipped", (1,))]


def test_ranks_in_different_collectives_are_told_apart() -> None:
    told = known(
        at("barrier", 3, 7, "barrier", "b.py:1"), at("barrier", 3, 7, "all_reduce", "c.py:1")
    )
    assert judged(told, 2) == [("collective-mismatch", (1,))]


@pytest.mark.parametrize(
    ("seen", "fate", "expected"),
    [
        ("", "", "rank-missing"),
        ("barrier", "", "rank-silent"),
        ("barrier", processes.UNKNOWN, "rank-silent"),
        ("barrier", processes.GONE, "rank-died"),
        ("barrier", processes.STOPPED, "rank-stopped"),
    ],
)
def test_a_rank_that_says_nothing_is_named_by_what_became_of_it(
    seen: str, fate: str, expected: str
) -> None:
    told = known(at("barrier", 3, 7), None, seen=seen, fate=fate)
    assert judged(told, 2) == [(expected, (1,))]


def test_an_error_that_follows_from_another_ranks_end_is_no_finding() -> None:
    closed = {0: outcome.found("backend-error", "connection closed", broken=True)}
    told = known(at("barrier", 3, 7), None, seen="barrier", fate=processes.GONE, outcomes=closed)
    assert judged(told, 2) == [("rank-died", (1,))]


def test_a_rank_that_left_with_an_error_of_its_own_is_the_cause() -> None:
    left = {1: outcome.found("checkpoint-failed", "no space", broken=True)}
    told = known(at("checkpoint", 9, 7, site="c.py:1"), at("checkpoint", 9, 7), outcomes=left)
    assert judged(told, 2) == [("checkpoint-failed", (1,))]


def test_an_error_of_the_backend_is_the_cause_where_the_others_only_wait() -> None:
    raised = {0: outcome.found("backend-error", "out of memory", broken=True)}
    waiting = known(
        at("collectives", 3, 7), at("collectives", 3, 8, site="c.py:1"), outcomes=raised
    )
    assert judged(waiting, 2) == [("backend-error", (0,))]
    alive = known(
        at("collectives", 3, 7), None, seen="collectives", fate=processes.ALIVE, outcomes=raised
    )
    assert judged(alive, 2) == [("backend-error", (0,))]


def test_an_error_that_follows_from_another_collective_is_no_finding() -> None:
    raised = {0: outcome.found("backend-error", "sizes differ", broken=True)}
    told = known(
        at("collectives", 3, 7, "all_reduce"), at("collectives", 3, 7, "broadcast"), outcomes=raised
    )
    assert judged(told, 2) == [("collective-mismatch", (1,))]


def test_what_an_earlier_run_left_is_not_this_ones(tmp_path: Path) -> None:
    word = postmortem.describe(
        "earlier", 0, "node1", "", at("barrier", 1, 1), [], outcome.Outcome().as_json()
    )
    assert postmortem.leave_word(word, tmp_path, None) is False
    assert postmortem.gather(None, tmp_path, 1, {}, "earlier").words[0]["run"] == "earlier"
    assert postmortem.gather(None, tmp_path, 1, {}, "this").words == {}


def test_nobody_is_blamed_when_all_are_in_one_place() -> None:
    told = known(*[at("barrier", 3, 7)] * 2)
    assert judged(told, 2) == [("deadline-passed", (0, 1))]
    assert judged(told, 2, "time-over") == [("time-over", (0, 1))]


def test_a_rank_that_reaches_only_the_disk_lost_its_link() -> None:
    told = known(*[at("barrier", 3, 7)] * 2)
    told.cut_off = [1]
    assert judged(told, 2) == [("link-lost", (1,))]


def test_the_failing_phase_is_that_of_the_last_rank() -> None:
    assert (
        postmortem.failing_phase(known(at("rendezvous", 0, 1), at("facts", 0, 0)), "rendezvous")
        == "facts"
    )
    assert (
        postmortem.failing_phase(known(at("rendezvous", 0, 1), None, seen="facts"), "rendezvous")
        == "facts"
    )
    assert postmortem.failing_phase(postmortem.Known(), "rendezvous") == "rendezvous"


# processes


def test_a_process_that_lives_stops_or_is_gone_is_told_apart() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        identity = processes.identity(child.pid)
        assert processes.state(identity) == processes.ALIVE
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert processes.state(identity) == processes.STOPPED
        processes.kill(identity)
        assert child.wait() == -signal.SIGKILL
        assert processes.state(identity) == processes.GONE
    finally:
        child.kill()
        child.wait()


def test_a_number_that_was_used_again_is_another_process() -> None:
    space, number, started = processes.own_identity()
    assert processes.state([space, number, started]) == processes.ALIVE
    assert processes.state([space, number, str(int(started) - 1)]) == processes.GONE
    assert processes.state(["another boot", number, started]) == processes.UNKNOWN


def test_a_process_that_is_hidden_is_not_called_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /proc is mounted with hidepid=2, or cannot be read just now."""
    identity, mine = processes.own_identity(), layout.temporary("step-000000000001")
    ended = [identity[0], "4194305", identity[2]]
    assert (processes.state(ended), layout.is_leftover(mine)) == (processes.GONE, False)
    (tmp_path / "sys").symlink_to("/proc/sys")
    (tmp_path / "self").symlink_to("/proc/self")
    monkeypatch.setattr(processes, "own_identity", lambda: identity)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    for _ in range(2):
        assert (processes.state(identity), layout.is_leftover(mine)) == (processes.UNKNOWN, False)
        assert processes.state(ended) == processes.GONE
        (tmp_path / identity[1] / "stat").mkdir(parents=True, exist_ok=True)


# clock


def skewed(*skews: float, bound: float = 0.01) -> list[tuple[int, ...]]:
    return [
        finding.ranks
        for finding in clock.judge([{"skew_s": skew, "bound_s": bound} for skew in skews])
    ]


def test_a_clock_is_off_against_what_most_say() -> None:
    assert skewed(0, 0.2, -0.9) == []
    assert skewed(0, 30) == [(1,)]
    assert skewed(0, 30, 30, 30) == [(0,)]
    assert skewed(0, 5, bound=10) == []


# sockets and peers


def test_why_a_port_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert sockets.why_unreachable("127.0.0.1", port) is None
        assert f"process {os.getpid()}" in sockets.listener(port)
    refused = sockets.why_unreachable("127.0.0.1", port)
    assert refused is not None
    assert refused == ("store-refused", f"nothing listens at 127.0.0.1:{port}")
    unknown = sockets.why_unreachable("no-such-host.invalid", port)
    assert unknown is not None
    assert unknown[0] == "master-unresolvable"
    assert sockets.listener(port) == ""


@pytest.mark.parametrize(
    ("backend", "wish", "expected"),
    [
        ("gloo", "eth1", "eth1"),
        ("gloo", "", None),
        ("nccl", "eth", "eth0"),
        ("nccl", "=eth1", "eth1"),
        ("nccl", "^docker,lo", None),
    ],
)
def test_the_interface_that_a_variable_chooses(
    backend: str, wish: str, expected: str | None
) -> None:
    variables = {peers.VARIABLES[backend]: wish}
    assert peers.chosen_interface(backend, variables, ["lo", "eth0", "eth1"]) == expected


@pytest.mark.parametrize(("backend", "wish"), [("gloo", "eth"), ("nccl", "=eth"), ("nccl", "ib")])
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(
    backend: str, wish: str
) -> None:
    with pytest.raises(LookupError, match="interfaces here are lo, eth0"):
        peers.chosen_interface(backend, {peers.VARIABLES[backend]: wish}, ["lo", "eth0"])


def test_the_next_rank_elsewhere() -> None:
    hosts = ["a", "a", "b", "b"]
    assert [peers.next_elsewhere(rank, hosts) for rank in range(4)] == [2, 2, 0, 0]
    assert peers.next_elsewhere(0, ["a", "a"]) is None


# rendezvous


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.2.2", False),
        ("2.3.1+cu121", True),
        ("2.5.1", True),
        ("2.6.0", False),
        ("2.7.0+cu128", False),
        ("2.7.1", True),
        ("2.13.0+cpu", True),
    ],
)
def test_releases_that_hang_with_a_device_id_do_not_get_one(version: str, expected: bool) -> None:
    assert rendezvous.takes_device_id(version) is expected


# progress


def empty_report() -> model.Report:
    return model.Report(
        "",
        0.0,
        "gloo",
        "cpu",
        2,
        ["node1"],
        "quick",
        [],
        {},
        progress.with_pending([], options.PHASES),
    )


def test_an_unfinished_report_is_unknown_and_never_a_success() -> None:
    unfinished = empty_report()
    assert unfinished.verdict == "unknown"
    assert progress.first_pending(unfinished) == "facts"
    assert [phase.name for phase in unfinished.phases] == list(options.PHASES)


def test_a_failure_takes_its_place_among_the_phases_or_their_end() -> None:
    stuck = outcome.found("rank-stuck", "stuck", [1])
    failing = progress.with_failure(empty_report(), "barrier", stuck, 1.0)
    assert (failing.verdict, [phase.name for phase in failing.phases]) == (
        "fail",
        list(options.PHASES),
    )
    ended = progress.with_failure(empty_report(), "teardown", stuck, 1.0)
    assert [phase.name for phase in ended.phases] == [*options.PHASES, "teardown"]


# timing


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [timing.percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert timing.percentile([3.0, 1.0], 99) == 3.0


def test_times_in_words() -> None:
    assert [timing.time_in_words(value) for value in (12.4, 15_000)] == ["12 us", "15.0 ms"]


# merges of the phases


def test_the_slowest_rank_at_a_barrier_is_the_one_that_does_not_wait() -> None:
    summary = barrier.summarize([[100.0, 120.0, 110.0], [10.0, 12.0, 300.0]])
    assert (summary["slowest_rank"], summary["p50_us"], summary["max_us"]) == (1, 120.0, 300.0)


def test_a_rank_that_the_others_always_wait_for_is_slow() -> None:
    waits = [[50_000.0] * 20, [100.0] * 20, [50_100.0] * 20]
    assert [(finding.id, finding.ranks) for finding in barrier.slow_ranks(waits)] == [
        ("slow-rank", (1,))
    ]


@given(st.lists(st.permutations([100.0, 30_000.0, 40_000.0]), min_size=10, max_size=50))
def test_ranks_that_are_last_in_turn_are_not_slow(turns: list[list[float]]) -> None:
    by_rank = [list(times) for times in zip(*turns)]
    last = max(sum(turn[rank] == 100.0 for turn in turns) for rank in range(3))
    assert bool(barrier.slow_ranks(by_rank)) == (last >= barrier.LAST_SHARE * len(turns))


# launcher


def test_ends_of_processes_in_words() -> None:
    assert launcher.in_words(-9) == "was ended by SIGKILL"
    assert launcher.in_words(3) == "ended with status 3"


@pytest.mark.parametrize(
    ("nodes", "visible", "backend", "expected"),
    [
        (0, None, "auto", 2),
        (8, None, "auto", 8),
        (8, "0,3", "auto", 2),
        (8, "", "auto", 2),
        (8, None, "gloo", 2),
    ],
)
def test_default_ranks(
    monkeypatch: pytest.MonkeyPatch, nodes: int, visible: str | None, backend: str, expected: int
) -> None:
    monkeypatch.setattr(
        libraries, "device_nodes", lambda: [f"/dev/nvidia{n}" for n in range(nodes)]
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launcher.default_ranks(backend) == expected
