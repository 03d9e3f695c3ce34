"""Statements of a project's files -> the keys of spec.yml, and an account of every statement.

Pure. torch, CUDA and Python are chosen from what all files state about them: a version, an index, a
build string, a companion's version. Of statements that contradict each other, the one of the file
that leads counts, and the other one is named; within one file neither does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from provision.core.dataclass import frozen
from provision.core.platforms import PLATFORM, Platform
from provision.core.statements import PipRequirement, Statement
from provision.project_files.account import Entry
from provision.project_files.cuda_choice import decide_cuda
from provision.project_files.decision import COMPANIONS, TORCH, RequestDecision
from provision.project_files.decision import Choices as Choices
from provision.project_files.packages import take_others
from provision.project_files.python_choice import decide_python, possible_pythons
from provision.project_files.torch_choice import decide_torch, torch_pythons


@frozen
class Request:
    """What files come to.

    content: keys of spec.yml; `pip` has editables as `-e PATH`. cudas: the CUDA versions that they
    allow, newest first, if they state CUDA and leave more than one. index_cuda: the CUDA of the
    wheel that the index serves for a torch which pip's lines name exactly (`cpu` for none).
    contradictions: of one file, or of what no release of torch meets. is_disputed: some statements
    contradict each other.
    """

    content: Mapping[str, Any]
    entries: tuple[Entry, ...]
    name: str | None = None
    cudas: tuple[str, ...] = ()
    index_cuda: str | None = None
    contradictions: tuple[str, ...] = ()
    is_disputed: bool = False


def decide(
    statements: Iterable[Statement],
    choices: Choices | None = None,
    *,
    default_python: str,
    platform: Platform = PLATFORM,
    located: Callable[[PipRequirement], str] | None = None,
) -> Request:
    """The keys of spec.yml that statements come to, and what became of each statement.

    Markers are decided for the Python that is chosen: the default if it is allowed and torch has
    it, else the newest that is. located: the requirement of spec.yml for a folder or file of this
    machine; empty if the user must add it.
    """
    new_decision = partial(
        RequestDecision,
        statements=list(dict.fromkeys(statements)),
        choices=choices or Choices(),
        platform=platform,
        located=located,
    )
    decisions = []
    for python in possible_pythons(new_decision(python=default_python), default_python):
        decision = new_decision(python=python)
        _run(decision)
        if python in torch_pythons(decision):
            return _request(decision)
        decisions.append(decision)
    # None of them is known: the resolver says so, and which are.
    return _request(decisions[0])


def _run(decision: RequestDecision) -> None:
    decide_python(decision)
    torch = [package for package in decision.packages if package.name in TORCH]
    companions = [package for package in decision.packages if package.name in COMPANIONS]
    decide_torch(decision, torch, companions)
    decide_cuda(decision, torch + companions)
    take_others(decision)


def _request(decision: RequestDecision) -> Request:
    """The result, with the entries in the order of the files. An option that requests nothing, like a
    hash, belongs to the requirement of its line."""
    statements = decision.statements
    requests = {(item.file, item.line) for item in statements if item.kind != "ignored"}
    entries = [
        decision.entries[statement]
        for statement in statements
        if statement.kind != "ignored"
        or statement.next_step
        or (statement.file, statement.line) not in requests
    ]
    return Request(
        content={key: value for key, value in decision.content.items() if value not in ([], None)},
        entries=tuple(entries),
        name=decision.name,
        cudas=decision.cudas,
        index_cuda=decision.index_cuda,
        contradictions=tuple(decision.contradictions),
        is_disputed=decision.is_disputed,
    )
