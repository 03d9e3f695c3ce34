"""The release of torch that a project's files state, by itself or by its companions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from provision import catalog, sources
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.statements import Statement
from provision.project_files.account import Outcome
from provision.project_files.decision import COMPANIONS, Narrowing, Package, RequestDecision

EXACT = re.compile(r"\s*={2,3}\s*(\d+(?:\.\d+)*)\s*")


def decide_torch(
    decision: RequestDecision, torch: Sequence[Package], companions: Sequence[Package]
) -> None:
    """Set torch, and whether its companions are requested."""
    table = list(catalog.releases())
    choice = decision.choices.torch
    allowed = (_matching(choice) or [choice]) if choice else table
    narrowing = Narrowing(decision, allowed, is_open=not choice)
    clauses: list[str] = []
    for package in torch:
        if package.channel in sources.names():
            decision.content["source"] = package.channel
        expression = _expression(package)
        # What the facts do not know, the resolver refuses, with what there is.
        if not expression:
            continue
        if narrowing.allows(package.statement, _matching(expression) or [expression]):
            clauses.append(expression)
        else:
            option = f"--torch {shlex.quote(expression)}"
            narrowing.refuse(package.statement, option, f"torch `{expression}`")
    for package in companions:
        releases = _paired(package)
        if not decision.choices.companions:
            decision.unpaired.add(package.statement)
        elif package.specifier and not narrowing.allows(package.statement, releases):
            # Later releases of torchaudio require no single release of torch.
            pins_torch = package.name != "torchaudio" or any(
                release.torchaudio_pins_torch
                for version, release in catalog.releases().items()
                if version in narrowing.allowed
            )
            if releases and pins_torch:
                option = f"--torch {releases[-1]}"
                narrowing.refuse(package.statement, option, f"`{package.statement.text}`")
            else:
                decision.unpaired.add(package.statement)
    decision.releases = narrowing.allowed
    expression = choice or _joined(clauses, narrowing.allowed, table)
    if expression:
        decision.content["torch"] = expression
    if torch or companions:
        decision.content["companions"] = bool(companions)
    _judge_index_default(decision, torch)


def torch_pythons(decision: RequestDecision) -> set[str]:
    """The Pythons for which the allowed releases have wheels, which are taken where they exist."""
    pythons: set[str] = set()
    for version in decision.releases:
        release = catalog.releases().get(version)
        if release is None or decision.choices.python:
            return {decision.python}
        pythons.update(release.python)
    return pythons


def end_torch(
    decision: RequestDecision, torch: Sequence[Package], with_cuda: Sequence[Statement], cuda: str
) -> None:
    """The entries of torch and its companions."""
    release = str(decision.content.get("torch", ""))
    for package in torch:
        statement = package.statement
        if statement in decision.entries or statement in decision.unpaired:
            continue
        became = [f'torch: "{release}"'] if package.specifier and release else []
        if statement in with_cuda and cuda:
            became.append(cuda)
        if package.channel and package.channel == decision.content.get("source"):
            became.append(f"source: {package.channel}")
        if package.name in COMPANIONS and not became:
            became.append("companions: true")
        is_same = not package.specifier or release == _expression(package)
        is_taken = is_same and statement not in with_cuda and not statement.reason
        outcome: Outcome = "taken" if is_taken else "translated"
        decision.end(statement, outcome, became=", ".join(became) or "torch")


def _judge_index_default(decision: RequestDecision, torch: Sequence[Package]) -> None:
    """An exact torch of pip's lines names one wheel of the index, and so its CUDA."""
    release = catalog.releases().get(decision.releases[0])
    if release is None or len(decision.releases) > 1:
        return
    default = release.index_default.get(decision.platform)
    if default and any(one.requirement and EXACT.fullmatch(one.specifier) for one in torch):
        decision.index_cuda = catalog.cuda_of_tag(default.build)


def _expression(package: Package) -> str:
    """A version or range of torch in the words of spec.yml; empty if any is allowed."""
    text = package.specifier.replace(" ", "")
    exact = EXACT.fullmatch(text)
    if exact:
        numbers = exact[1].split(".")
        return ".".join([*numbers, "0", "0"][: max(3, len(numbers))])
    prefix = re.fullmatch(r"(?:={1,2})?(\d+(?:\.\d+){0,2})(?:\.\*)?", text)
    return prefix[1] if prefix else re.sub(r"^={2,3}", "", text)


@cache
def _matching(expression: str) -> list[str]:
    """The releases that an expression means, oldest first."""
    versions: list[str] = []
    for alternative in expression.split("|"):
        text = re.sub(r"^={0,2}([\d.]+?)(?:\.\*)?$", r"\1", alternative)
        try:
            versions += [release.version for release in catalog.matching_releases(text)]
        except (NoSuchBuild, InvalidSpec):
            continue
    return [version for version in catalog.releases() if version in versions]


def _joined(clauses: Sequence[str], allowed: list[str], table: Sequence[str]) -> str:
    """One expression for all of them. allowed: the releases that it means."""
    for clause in clauses:
        if re.fullmatch(r"\d+\.\d+\.\d+.*", clause):
            return clause
    different = {tuple(_matching(clause)) or clause: clause for clause in clauses}
    if len(different) == 1 and "|" not in clauses[0] and _matching(clauses[0]) in ([], allowed):
        return clauses[0]
    if list(allowed) == list(table):
        return ""
    return allowed[0] if len(allowed) == 1 else f">={allowed[0]},<={allowed[-1]}"


def _paired(package: Package) -> list[str]:
    """The releases of torch that some source pairs with such a version of a companion."""
    return [
        release.version
        for release in catalog.releases().values()
        for source in sources.REGISTRY
        for companion in source.companions(release)
        if companion.name == package.name and _contains(package, companion.version)
    ]


def _contains(package: Package, version: str | None) -> bool:
    if version is None or not package.specifier:
        return False
    # conda's `0.15.*` has no operator.
    text = re.sub(r"(^|,)(?=\d)", r"\1==", package.specifier)
    try:
        return SpecifierSet(text).contains(version, prereleases=True)
    except InvalidSpecifier:
        return False
