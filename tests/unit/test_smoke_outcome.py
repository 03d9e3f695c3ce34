"""Outcomes of ranks and phases, and how they become one."""

from __future__ import annotations

import json

from provision_runtime.comm.ranks import name_ranks
from provision_runtime.report import model
from provision_runtime.smoke import findings, outcome


def test_a_failure_on_any_rank_is_the_phases_and_names_the_rank() -> None:
    folded = outcome.combine(
        [outcome.Outcome(message="fine"), outcome.with_finding("wrong-value", "too hot")]
    )
    assert (folded.verdict, folded.summary) == ("fail", "rank 1: too hot")
    assert folded.findings == (outcome.Finding("wrong-value", "too hot", (1,)),)


def test_a_finding_brings_the_advice_of_its_rule_unless_it_has_its_own() -> None:
    assert (
        outcome.Finding("wrong-value", "").reported().advice
        == findings.CATALOG["wrong-value"].advice
    )
    assert outcome.Finding("wrong-value", "", (), "cool it").reported().advice == "cool it"


def test_ranks_that_say_the_same_are_named_together() -> None:
    outcomes = [outcome.with_finding("wrong-value", text) for text in ("a", "b", "a")]
    assert [str(finding) for finding in outcome.combine(outcomes).findings] == [
        "ranks 0, 2: a",
        "rank 1: b",
    ]
    assert name_ranks(list(range(6))) == "ranks 0-5"


def test_a_warning_leaves_the_phase_its_own_words() -> None:
    warned = outcome.Outcome("50 barriers", (outcome.Finding("slow-rank", "waited for", (1,)),))
    assert (warned.verdict, warned.summary) == ("warn", "50 barriers")


def test_one_broken_rank_breaks_the_phase() -> None:
    assert outcome.combine(
        [outcome.Outcome(), outcome.with_finding("store-lost", "gone", broken=True)]
    ).broken


def test_an_outcome_survives_the_store() -> None:
    broken = outcome.with_finding("wrong-value", "too hot", [3], {"size": 8}, broken=True)
    assert outcome.from_json(json.loads(json.dumps(broken.as_json()))) == broken


def test_every_rule_has_a_verdict_that_reports_know_and_says_what_to_do() -> None:
    for name, rule in findings.CATALOG.items():
        assert rule.verdict in model.WORST_FIRST[:3], name
        assert rule.meaning, name
        assert rule.advice, name


def test_the_guesses_of_gloo_are_cut_from_its_errors() -> None:
    text = "[/a/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:68.\n This is typically caused by a crash. GLHF!"
    assert (
        outcome.describe_error(RuntimeError(text))
        == "RuntimeError: Connection closed by peer [127.0.0.1]:68"
    )
