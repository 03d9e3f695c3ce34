"""The release of torch that a project's files state, by itself or by its companions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from provision import catalog, sources
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.platforms import PLATFORM
from provision.core.statements import Statement
from provision.project_files.account import Outcome
from provision.project_files.decision import COMPANIONS, Narrowing, Package, Request

EXACT = re.compile(r"\s*={2,3}\s*(\d+(?:\.\d+)*)\s*")


def decide_torch(request: Request, torch: Sequence[Package], companions: Sequence[Package]) -> None:
    """Set torch, and whether its companions are requested."""
    releases, choice = catalog.releases(), request.choices.torch
    allowed = (_matching(choice) or [choice]) if choice else list(releases)
    narrowing = Narrowing(request, allowed, is_open=not choice)
    clauses = []
    for package in torch:
        if package.channel in sources.names():
            request.content["source"] = package.channel
        expression = _expression(package)
        # What the facts do not know, the resolver refuses, with what there is.
        option, what = f"--torch {shlex.quote(expression)}", f"torch `{expression}`"
        versions = _matching(expression) or [expression]
        if expression and narrowing.take(package.statement, versions, option, what):
            clauses.append(expression)
    for package in companions:
        statement, paired = package.statement, _paired(package)
        # Later releases of torchaudio require no single release of torch.
        pins_torch = package.name != "torchaudio" or any(
            releases[version].torchaudio_pins_torch
            for version in narrowing.allowed
            if version in releases
        )
        option = f"--torch {paired[-1]}" if paired and pins_torch else ""
        if not request.choices.companions:
            request.unpaired.add(statement)
        elif package.specifier:
            fits = narrowing.take(statement, paired, option, f"`{statement.text}`")
            if not fits and not option:
                request.unpaired.add(statement)
    request.releases = narrowing.allowed
    expression = choice or _joined(clauses, narrowing.allowed)
    if expression:
        request.content["torch"] = expression
    if torch or companions:
        request.content["companions"] = bool(companions)
    # An exact torch of pip's lines names one wheel of the index, and so its CUDA.
    is_exact = any(
        candidate.requirement and EXACT.fullmatch(candidate.specifier) for candidate in torch
    )
    release = releases.get(request.releases[0])
    if is_exact and release and len(request.releases) == 1:
        default = release.index_default.get(PLATFORM)
        request.index_cuda = catalog.cuda_of_tag(default.build) if default else None


def torch_pythons(request: Request) -> set[str]:
    """The Pythons for which the allowed releases have wheels, which are taken where they exist."""
    pythons: set[str] = set()
    for version in request.releases:
        release = catalog.releases().get(version)
        if release is None or request.choices.python:
            return {request.python}
        pythons.update(release.python)
    return pythons


def end_torch(request: Request, torch: Sequence[Package], of_cuda: Mapping[Statement, str]) -> None:
    """The entries of torch and its companions. of_cuda: what the statements about CUDA became."""
    release = str(request.content.get("torch", ""))
    for package in torch:
        statement = package.statement
        if statement in request.ended or statement in request.unpaired:
            continue
        became = [f'torch: "{release}"'] if package.specifier and release else []
        became += filter(None, [of_cuda.get(statement)])
        if package.channel and package.channel == request.content.get("source"):
            became.append(f"source: {package.channel}")
        if package.name in COMPANIONS and not became:
            became.append("companions: true")
        build = "cpu" if "cpu" in request.content else request.content.get("cuda")
        is_other = package.local and build and catalog.cuda_of_tag(package.local[1:]) != build
        reason = f"the build of the environment is another one than {package.local}"
        is_same = not package.specifier or release == _expression(package)
        is_taken = is_same and statement not in of_cuda and not statement.reason and not is_other
        outcome: Outcome = "taken" if is_taken else "translated"
        request.end(
            statement,
            outcome,
            became=", ".join(became) or "torch",
            reason=reason if is_other else "",
        )


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
    versions = []
    for alternative in expression.split("|"):
        text = re.sub(r"^={0,2}([\d.]+?)(?:\.\*)?$", r"\1", alternative)
        try:
            versions += [release.version for release in catalog.matching_releases(text)]
        except (NoSuchBuild, InvalidSpec):
            continue
    return [version for version in catalog.releases() if version in versions]


def _joined(clauses: Sequence[str], allowed: list[str]) -> str:
    """One expression for all of them. allowed: the releases that it means."""
    for clause in clauses:
        if "|" not in clause and (_matching(clause) or [clause]) == allowed:
            return clause
    if allowed == list(catalog.releases()):
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
