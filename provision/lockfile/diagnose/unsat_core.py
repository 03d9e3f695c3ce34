"""Finds which requirements conflict, for any solver, and describes them with their reasons."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from provision import sources
from provision.catalog import version_key
from provision.core.errors import Unsolvable
from provision.core.package_names import requirement_name
from provision.core.spec_fields import DEFAULT_PACKAGE_KEYS
from provision.core.types import Pin
from provision.sources.base import REQUESTED

T = TypeVar("T")

TORCH_NAMES = {source.torch_package for source in sources.REGISTRY}
# Whose a requirement is; a conflict is searched for among these in this order.
USER, PYTHON, TORCH, RULE = range(4)
MAX_WITH_REASONS = 3
WITH = " with "  # between options that help together
MAX_PYTHONS = 4  # that a diagnosis tries
DETAILS_ADVICE = "-v shows the solver's own output."
# Packages that are added by default, and the option that leaves each out.
DEFAULT_PACKAGES = {
    name: key.negative_option
    for key in DEFAULT_PACKAGE_KEYS
    for package in key.installs
    for name in (package, f"python-{package}")  # perhaps conda's name
}


# A diagnosis whose servers are silent uses no CPU time.
LONGEST_WAIT_S = 120.0


class OutOfTime(Exception):
    """The budget is used up."""


class Budget:
    """The CPU time for all attempts of one diagnosis, of this process and of the solvers that it
    started: a loaded machine finds the same cause as an idle one.
    """

    def __init__(self, cpu_s: float) -> None:
        self.cpu_s = cpu_s
        self._end = _cpu_time_s() + cpu_s
        self._latest = time.monotonic() + LONGEST_WAIT_S

    def check(self) -> None:
        """Raise OutOfTime if the budget is used up."""
        if _cpu_time_s() >= self._end:
            raise OutOfTime(f"{self.cpu_s:.0f} s of CPU time did not suffice to find the cause")
        if time.monotonic() > self._latest:
            raise OutOfTime(f"the cause was not found within {LONGEST_WAIT_S:.0f} s")


def _cpu_time_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def undiagnosed(error: Unsolvable, reason: Exception) -> Unsolvable:
    """The failure with the solver's own explanation, since the cause was not found."""
    return Unsolvable(
        f"{error.message.partition(': ')[0].rstrip('.')}.\nNo shorter explanation: {str(reason).rstrip('.')}. The solver says:\n"
        f"{error.details.strip()}",
        advice=error.advice,
        details=error.details,
    )


def minimal(elements: Sequence[T], solvable: Callable[[Sequence[T]], bool]) -> list[T]:
    """A minimal unsatisfiable subset, in the given order: it has no solution, but would without any
    one of its elements.

    All elements together must have no solution. Of several such subsets, the one with the earliest
    elements is returned. This is QuickXplain (Junker, AAAI 2004), which calls `solvable` rarely.
    """
    if len(elements) < 2:
        return list(elements)
    return _quick_xplain([], False, list(elements), solvable)


def _quick_xplain(
    background: list[T],
    background_grew: bool,
    elements: list[T],
    solvable: Callable[[Sequence[T]], bool],
) -> list[T]:
    if background_grew and not solvable(background):
        return []
    if len(elements) == 1:
        return elements
    middle = len(elements) // 2
    first, second = elements[:middle], elements[middle:]
    from_second = _quick_xplain(background + first, True, second, solvable)
    from_first = _quick_xplain(background + from_second, bool(from_second), first, solvable)
    return from_first + from_second


@dataclass(frozen=True)
class PinReasons:
    """Requirement -> why it is in the request, with the source of that reason."""

    reasons: Mapping[str, str]
    default: str = "written into environment.yml by hand"

    @classmethod
    def of(cls, pins: Iterable[Pin], bounds: Mapping[str, str] | None = None) -> PinReasons:
        """The reasons of pins, and of bounds with their reasons."""
        reasons = {}
        for pin in pins:
            # The first of several sources, with a short commit hash.
            source = re.sub(r"@([0-9a-f]{8})[0-9a-f]{32}", r"@\1", pin.source.split("; ")[0])
            reasons[pin.requirement] = f"{pin.reason}; {source}"
        return cls({**reasons, **(bounds or {})})

    def describe(self, requirements: Sequence[str]) -> str:
        """The requirements, with their reasons unless there are many."""
        if len(requirements) > MAX_WITH_REASONS:
            return ", ".join(f"`{text}`" for text in requirements)
        return " and ".join(
            f"`{text}` ({self.reasons.get(text, self.default)})" for text in requirements
        )

    def weight(self, requirement: str) -> int:
        """The smaller, the more a requirement says about what the user asked for: conflicts are
        searched among these first.
        """
        name = requirement_name(requirement)
        if name in TORCH_NAMES:
            return TORCH
        if self.reasons.get(requirement, REQUESTED).startswith(REQUESTED):
            return USER
        return PYTHON if name == "python" else RULE

    def option(self, requirement: str) -> str | None:
        """The option that leaves the requirement out, if it was added by default."""
        if self.weight(requirement) == USER:
            return None
        return DEFAULT_PACKAGES.get(requirement_name(requirement))


def solutions(
    core: Sequence[str],
    reasons: PinReasons,
    solves: Callable[[str], bool],
    python: str,
    pythons: Iterable[str],
) -> str:
    """The beginning of an advice: the option for the nearest Python, and those that leave default
    packages out, each of which solves the conflict by itself, or all of them. core: the requirements
    that conflict. solves: whether an option does, or several, joined by WITH."""
    enough: list[str] = []
    for other in nearest_pythons(python, pythons) if python else ():
        if not enough and solves(f"--python {other}"):
            enough.append(f"--python {other}")
    at_fault = dict.fromkeys(filter(None, map(reasons.option, core)))
    sufficient = [option for option in at_fault if solves(option)]
    added = dict.fromkeys(filter(None, map(reasons.option, reasons.reasons)))
    if at_fault and not sufficient and solves(WITH.join(added)):
        needed = minimal([*added], lambda options: not solves(WITH.join(options)))
        sufficient = [WITH.join(needed)]
    enough += sufficient
    if not enough:
        return ""
    return f"Without other changes, {', or '.join(f'{option} solves it' for option in enough)}. "


def nearest_pythons(python: str, pythons: Iterable[str]) -> list[str]:
    """The other Python versions, the nearest first, of two the older one."""
    candidates = {version for version in pythons if re.fullmatch(r"3\.\d+", version)} - {python}
    by_age = sorted(candidates, key=version_key)
    minor = version_key(python)[1]
    return sorted(by_age, key=lambda other: abs(version_key(other)[1] - minor))[:MAX_PYTHONS]
