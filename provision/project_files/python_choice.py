"""The Python that a project's files state, or allow."""

from __future__ import annotations

import re

from provision import catalog
from provision.core.statements import Statement
from provision.project_files.account import Outcome
from provision.project_files.decision import Narrowing, RequestDecision, wheel_facts
from provision.project_files.versions import allowed_minors, named_minor


def possible_pythons(decision: RequestDecision, default: str) -> list[str]:
    """The Pythons that the files allow, in the order in which they are tried."""
    pythons = _allowed_pythons(decision)

    def distance(python: str) -> int:
        return abs(catalog.version_key(python)[1] - catalog.version_key(default)[1])

    if not _stated(decision) and not decision.choices.python:
        return sorted(pythons, key=distance)
    newest_first = sorted(pythons, key=catalog.version_key, reverse=True)
    return sorted(newest_first, key=lambda python: python != default)


def decide_python(decision: RequestDecision) -> None:
    """Set the Python, if files or options state it."""
    stated = _stated(decision)
    if not stated and not decision.choices.python:
        return
    _allowed_pythons(decision)
    python = decision.python
    decision.content["python"] = python
    for statement, specifier in stated:
        is_wheel = statement.requirement is not None and statement.requirement.source
        if statement in decision.entries or is_wheel:
            continue
        numbers = "".join(re.findall(r"[\d.]+", specifier)).rstrip(".")
        is_plain = named_minor(specifier) and numbers == python
        outcome: Outcome = "taken" if is_plain else "translated"
        reason = "" if is_plain else "an environment has one minor version of Python"
        decision.end(statement, outcome, became=f'python: "{python}"', reason=reason)


def _stated(decision: RequestDecision) -> list[tuple[Statement, str]]:
    """What is stated about Python, in order: statements, and the wheels of one Python."""
    stated = []
    packages = {package.statement: package for package in decision.packages}
    for statement in decision.statements:
        package = packages.get(statement)
        if statement.kind == "python":
            stated.append((statement, statement.value))
        elif package and package.name == "python" and package.requirement is None:
            stated.append((statement, package.specifier))
    for package in decision.packages:
        minor = wheel_facts(package.requirement)[1] if package.requirement else ""
        if minor:
            stated.append((package.statement, f"=={minor}"))
    return stated


def _allowed_pythons(decision: RequestDecision) -> list[str]:
    """The Pythons that all statements allow."""
    choice = decision.choices.python
    known = sorted(
        {python for release in catalog.releases().values() for python in release.python},
        key=catalog.version_key,
    )
    narrowing = Narrowing(decision, [choice] if choice else known, is_open=not choice)
    for statement, specifier in _stated(decision):
        named = named_minor(specifier)
        universe = dict.fromkeys(filter(None, (*known, named, choice)))
        try:
            fitting = allowed_minors(specifier, universe)
        except ValueError as error:
            decision.leave_out(statement, str(error))
            continue
        if not narrowing.allows(statement, fitting):
            newest = named or "".join(fitting[-1:])
            narrowing.refuse(statement, f"--python {newest}", f"Python `{specifier}`")
    return narrowing.allowed
