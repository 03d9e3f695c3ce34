"""PinReasons uv found no wheels, in our terms: which requests with their reasons, and uv's own sentence about these alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name

from provision.adapters import uv
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.mirrors import without_login
from provision.lockfile.diagnose.unsat_core import (
    Budget,
    OutOfTime,
    PinReasons,
    minimal,
    suggest_options,
)

# One question to uv takes 0.3 to 1 s.
BUDGET_S = 20.0
WORDS = "-v shows the solver's own words."


def explain(error: Unsolvable, request: uv.ResolveRequest, why: PinReasons) -> Unsolvable:
    """The same failure, with its cause as far as it could be found within the budget."""
    budget = Budget(BUDGET_S)
    try:
        return _explain(error, request, why, budget)
    except (OutOfTime, ProvisionError):
        return error


def _explain(
    error: Unsolvable, request: uv.ResolveRequest, why: PinReasons, budget: Budget
) -> Unsolvable:
    def failure(
        requirements: Sequence[str], provided: Mapping[str, str] = request.provided
    ) -> Unsolvable | None:
        budget.check()
        try:
            uv.resolve_versions(
                dataclasses.replace(
                    request, requirements=tuple(requirements), provided=provided, prefer={}
                )
            )
        except Unsolvable as found:
            return found
        return None

    if (
        failure(request.requirements) is None
    ):  # the versions exist, a file does not: the error says which
        return error
    core = minimal(sorted(request.requirements, key=why.weight), lambda some: failure(some) is None)
    bound = {}
    if request.provided and failure(core, {}) is None:
        names = minimal(
            sorted(request.provided),
            lambda some: failure(core, {name: request.provided[name] for name in some}) is None,
        )
        bound = {name: request.provided[name] for name in names}
    last = failure(core, bound) or error
    fact = _fact(
        dataclasses.replace(request, requirements=tuple(core), provided=bound, prefer={}), budget
    )
    given = (
        " beside conda's " + ", ".join(f"{name} {version}" for name, version in bound.items())
        if bound
        else ""
    )
    where = f"{request.platform}, Python {request.python}"
    message = f"There are no wheels for {where}, that satisfy {why.listed(core)}{given}: {fact or _said(last)}"
    return Unsolvable(
        message,
        advice=f"{_way_out(request, core, why, budget)}{_index(request, core)}{WORDS}",
        details=error.details,
    )


def _index(request: uv.ResolveRequest, core: Sequence[str]) -> str:
    """A torch that is not the index's default build is on an index that must be configured."""
    if request.build_path is None or not any("+" in text for text in core):
        return ""
    folder = uv.torch_index_url(request.build_path)
    if folder:
        return (
            f"{uv.TORCH_INDEX} leads to {without_login(folder)}: look there for what it has for this Python and platform, or correct "
            f"the address, which ends before the folder {request.build_path}. "
        )
    return (
        f"Builds with +{request.build_path} are on PyTorch's own wheel index: set the environment variable {uv.TORCH_INDEX} to its "
        f"address, without the folder {request.build_path} at its end. "
    )


def _fact(request: uv.ResolveRequest, budget: Budget) -> str | None:
    """The date or the machine, if that is what stands in the way."""
    changed = {
        f"they need a newer glibc than {request.glibc} (--glibc).": dataclasses.replace(
            request, glibc=uv.UV_GLIBC[-1]
        )
    }
    if request.as_of:
        changed[f"they were published after {request.as_of} (--as-of)."] = dataclasses.replace(
            request, as_of=None
        )
    for fact, other in changed.items():
        budget.check()
        try:
            uv.resolve_versions(other)
        except Unsolvable:
            continue
        return fact
    return None


def _said(error: Unsolvable) -> str:
    """uv's sentence, without what it concludes from it."""
    said = error.message.partition(": ")[2]
    said = re.sub(
        r",? (we can conclude that|it follows that) your requirements are unsatisfiable", "", said
    )
    return said.partition(" hint: ")[0].rstrip(". ") + "."


def _way_out(
    request: uv.ResolveRequest, core: Sequence[str], why: PinReasons, budget: Budget
) -> str:
    def solvable(rest: Sequence[str]) -> bool:
        budget.check()
        try:
            uv.resolve_versions(dataclasses.replace(request, requirements=tuple(rest), prefer={}))
        except Unsolvable:
            return False
        return True

    ways = []
    for text in core:
        name = re.split(r"[\s=<>!~;\[@]", text, maxsplit=1)[0]
        loose = tuple(name if other == text else other for other in request.requirements)
        if why.is_users(text) and name != text:
            budget.check()
            try:
                found = uv.resolve_versions(
                    dataclasses.replace(request, requirements=loose, prefer={})
                )
            except Unsolvable:
                continue
            ways.append(f"`{text}` could be {name} {found[canonicalize_name(name)]}")
    ways += suggest_options(request.requirements, core, why, solvable)
    return f"With all else as it is, {', or '.join(ways)}. " if ways else ""
