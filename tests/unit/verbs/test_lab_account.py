"""A member's account against a lab's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provision.verbs.join.account import GIB, AccountFacts, judge_account
from provision.verbs.join.steps import Note, StepResult
from provision.workflow.lab_definition import Policy


def facts(**changes: Any) -> AccountFacts:
    values: dict[str, Any] = {
        "user": "alice",
        "shell": "/bin/bash",
        "home": Path("/home/alice"),
        "free_bytes": 8 * GIB,
        "free_inodes": None,
        "umask": 0o22,
        "groups": ("alice", "ml"),
    }
    return AccountFacts(**{**values, **changes})


def problems(account: AccountFacts, policy: Policy) -> list[tuple[str, str]]:
    notes = judge_account(account, policy, "the admins")
    return [(note.status, note.message) for note in notes if note.status != "done"]


def test_an_account_that_is_fine() -> None:
    assert problems(facts(free_inodes=100_000), Policy(groups=("ml",), umask=0o22)) == []


def test_what_an_account_lacks() -> None:
    account = facts(free_inodes=3)
    policy = Policy(groups=("gpu", "ml"), umask=0o27)
    assert problems(account, policy) == [
        ("warning", "your home has room for only 3 files, however small"),
        ("open", "you are not a member of the group gpu"),
        ("warning", "your umask is 022; the lab's is 027"),
    ]


def test_a_small_home() -> None:
    account = facts(free_bytes=GIB // 2)
    assert problems(account, Policy()) == [
        ("warning", "512 MiB are free in your home; the lab wants 1 GiB")
    ]


def test_a_step_is_as_its_worst_note() -> None:
    notes = (Note(status="warning", message="a"), Note(status="done", message="b"))
    assert StepResult(step="ssh", notes=notes).status == "warning"
    assert not StepResult(step="ssh", notes=notes).is_open
    with_open = (*notes, Note(status="open", message="c"), Note(status="pending", message="d"))
    assert StepResult(step="ssh", notes=with_open).status == "open"
    assert StepResult(step="summary", notes=()).status == "done"
