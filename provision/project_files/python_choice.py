"""The Python that a project's files state, or allow."""

from __future__ import annotations

import re

from provision import catalog
from provision.core.statements import Statement
from provision.project_files.account import Outcome
from provision.project_files.decision import Narrowing, Request, wheel_facts
from provision.project_files.versions import allowed_minors, named_minor


def possible_pythons(request: Request, default: str) -> list[str]:
    """The Pythons that the files allow, in the order in which they are tried."""
    pythons = _allowed_pythons(request)

    def distance(python: str) -> int:
        return abs(catalog.version_key(python)[1] - catalog.version_key(default)[1])

    if not _stated(request) and not request.choices.python:
        return sorted(pythons, key=distance)
    newest_first = sorted(pythons, key=catalog.version_key, reverse=True)
    return sorted(newest_first, key=lambda python: python != default)


def decide_python(request: Request) -> None:
    """Set the Python, if files or options state it."""
    stated = _stated(request)
    if not stated and not request.choices.python:
        return
    _allowed_pythons(request)
    python = request.python
    request.content["python"] = python
    for statement, specifier in stated:
        is_wheel = statement.requirement is not None and statement.requirement.source
        if statement in request.ended or is_wheel:
            continue
        numbers = "".join(re.findall(r"[\d.]+", specifier)).rstrip(".")
        is_plain = named_minor(specifier) and numbers == python
        outcome: Outcome = "taken" if is_plain else "translated"
        reason = "" if is_plain else "an environment has one minor version of Python"
        request.end(statement, outcome, became=f'python: "{python}"', reason=reason)


def _stated(request: Request) -> list[tuple[Statement, str]]:
    """What is stated about Python, in order: statements, and the wheels of one Python."""
    stated = []
    packages = {package.statement: package for package in request.packages}
    for statement in request.statements:
        package = packages.get(statement)
        if statement.kind == "python":
            stated.append((statement, statement.value))
        elif package and package.name == "python" and package.requirement is None:
            stated.append((statement, package.specifier))
    for package in request.packages:
        minor = wheel_facts(package.requirement)[1] if package.requirement else ""
        if minor:
            stated.append((package.statement, f"=={minor}"))
    return stated


def _allowed_pythons(request: Request) -> list[str]:
    choice = request.choices.python
    supported = sorted(
        {python for release in catalog.releases().values() for python in release.python},
        key=catalog.version_key,
    )
    narrowing = Narrowing(request, [choice] if choice else supported, is_open=not choice)
    for statement, specifier in _stated(request):
        named = named_minor(specifier)
        universe = dict.fromkeys(filter(None, (*supported, named, choice)))
        try:
            fitting = allowed_minors(specifier, universe)
        except ValueError as error:
            request.leave_out(statement, str(error))
            continue
        newest = named or "".join(fitting[-1:])
        narrowing.take(statement, fitting, f"--python {newest}", f"Python `{specifier}`")
    return narrowing.allowed
