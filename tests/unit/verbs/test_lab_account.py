"""How the steps of `join` stand."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from provision.verbs.join import account_steps
from provision.verbs.join.join_run import JoinRun
from provision.verbs.join.steps import Note, StepResult
from provision.workflow.lab_definition import Lab, Policy
from tests.progress import Recorder


def problems(
    folder: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str]]:
    monkeypatch.setattr(account_steps, "current_umask", lambda: 0o22)
    monkeypatch.setattr(JoinRun, "account_findings", lambda self, ids: [])
    lab = Lab(name="lab", folder=folder, contact="me", policy=policy)
    notes = account_steps.account(JoinRun(lab=lab, progress=Recorder(), act=False))
    return [(note.status, note.message) for note in notes if note.status != "done"]


def test_what_an_account_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = grp.getgrgid(os.getegid()).gr_name
    assert problems(tmp_path, Policy(groups=(own,), umask=0o22), monkeypatch) == []
    policy = Policy(groups=("no-such-group", own), umask=0o27)
    assert problems(tmp_path, policy, monkeypatch) == [
        ("open", "you are not a member of the group no-such-group"),
        ("warning", "your umask is 022; the lab's is 027"),
    ]


def test_a_step_is_as_its_worst_note() -> None:
    notes = (Note(status="warning", message="a"), Note(status="done", message="b"))
    assert StepResult(step="ssh", notes=notes).status == "warning"
    assert not StepResult(step="ssh", notes=notes).is_open
    with_open = (*notes, Note(status="open", message="c"), Note(status="pending", message="d"))
    assert StepResult(step="ssh", notes=with_open).status == "open"
    assert StepResult(step="shell", notes=()).status == "done"
