"""Outcomes of ranks and phases, and how they become one."""

from __future__ import annotations

import json
from dataclasses import asdict

from provision_runtime.comm.rank_names import name_ranks
from provision_runtime.report import findings, model
from provision_runtime.report.codec import decode
from provision_runtime.smoke import outcome, reporter


def test_failure_on_any_rank_fails_the_phase_naming_the_rank() -> None:
    folded = outcome.combine(
        [outcome.Outcome(message="fine"), outcome.with_finding("wrong-value", "too hot")]
    )
    assert (folded.verdict, folded.summary) == ("fail", "rank 1: too hot")
    assert folded.findings == (outcome.Finding("wrong-value", "too hot", (1,)),)


def test_finding_has_its_rules_advice_unless_overridden() -> None:
    assert (
        outcome.Finding("wrong-value", "").reported().advice
        == findings.CATALOG["wrong-value"].advice
    )
    assert outcome.Finding("wrong-value", "", (), "cool it").reported().advice == "cool it"


def test_equal_findings_of_ranks_are_merged() -> None:
    outcomes = [outcome.with_finding("wrong-value", text) for text in ("a", "b", "a")]
    assert [str(finding) for finding in outcome.combine(outcomes).findings] == [
        "ranks 0, 2: a",
        "rank 1: b",
    ]
    assert name_ranks(list(range(6))) == "ranks 0-5"


def test_warning_leaves_the_phase_message() -> None:
    warned = outcome.Outcome("50 barriers", (outcome.Finding("slow-rank", "waited for", (1,)),))
    assert (warned.verdict, warned.summary) == ("warn", "50 barriers")


def test_one_broken_rank_breaks_the_phase() -> None:
    assert outcome.combine(
        [outcome.Outcome(), outcome.with_finding("store-lost", "gone", broken=True)]
    ).broken


def test_outcome_round_trips_through_the_store() -> None:
    found = outcome.Finding("wrong-value", "too hot", (3,))
    broken = outcome.Outcome("hot", (found,), {"size": 8}, broken=True)
    assert decode(outcome.Outcome, json.loads(json.dumps(asdict(broken))), "outcome") == broken


def test_every_rule_has_a_known_verdict_and_advice() -> None:
    for name, rule in findings.CATALOG.items():
        assert rule.verdict in model.WORST_FIRST[:3], name
        assert rule.meaning, name
        assert rule.advice, name


def test_gloo_guesses_are_removed_from_errors() -> None:
    text = "[/a/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:68.\n This is typically caused by a crash. GLHF!"
    assert (
        outcome.describe_error(RuntimeError(text))
        == "RuntimeError: Connection closed by peer [127.0.0.1]:68"
    )


def test_strict_makes_warnings_about_speed_failures() -> None:
    warned = outcome.Outcome(
        "50 barriers",
        (outcome.Finding("slow-rank", "waited for", (1,)), outcome.Finding("shm-full", "nearly")),
    )
    assert reporter.report_phase("barrier", warned, 1.0).verdict == "warn"
    strict = reporter.report_phase("barrier", warned, 1.0, strict=True)
    assert strict.verdict == "fail"
    assert [finding.verdict for finding in strict.findings] == ["fail", "warn"]


def test_the_warnings_that_strict_counts_exist() -> None:
    assert {findings.CATALOG[each].verdict for each in findings.PERFORMANCE_WARNINGS} == {"warn"}
