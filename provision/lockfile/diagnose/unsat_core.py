"""Finds which requirements conflict, for any solver, and describes them with their reasons."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from provision import sources
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
MAX_PYTHONS = 4  # that a diagnosis tries
# Packages that are added by default, and the option that leaves each out.
DEFAULT_PACKAGES: dict[str, str] = {}
for _key in DEFAULT_PACKAGE_KEYS:
    for _package in _key.installs:
        DEFAULT_PACKAGES[_package] = _key.negative_option
        DEFAULT_PACKAGES[f"python-{_package}"] = _key.negative_option  # perhaps conda's name


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

    def is_users(self, requirement: str) -> bool:
        """Whether the user requested it, in addition to torch."""
        if requirement_name(requirement) in TORCH_NAMES:
            return False
        reason = self.reasons.get(requirement)
        return reason is None or reason.startswith(REQUESTED)

    def option(self, requirement: str) -> str | None:
        """The option that leaves the requirement out, if it was added by default."""
        if self.is_users(requirement):
            return None
        return DEFAULT_PACKAGES.get(requirement_name(requirement))

    def weight(self, requirement: str) -> int:
        """The smaller, the more a requirement says about what the user asked for: conflicts are
        searched among these first.
        """
        if self.is_users(requirement):
            return USER
        name = requirement_name(requirement)
        if name == "python":
            return PYTHON
        return TORCH if name in TORCH_NAMES else RULE


def suggestions(
    requirements: Sequence[str],
    core: Sequence[str],
    reasons: PinReasons,
    other_version: Callable[[str], str | None],
    solvable: Callable[[Sequence[str]], bool],
) -> list[str]:
    """Sentences about what solves the conflict: another version of what the user requested; options
    that leave packages out, each that is enough by itself, or else all of them.

    core: the requirements that conflict. other_version: the package and version that would do
    instead of a requirement, if there is one. solvable: takes the requirements that remain.
    """
    sentences = []
    for text in core:
        replacement = other_version(text) if reasons.is_users(text) else None
        if replacement is not None:
            sentences.append(f"`{text}` could become {replacement}")

    def solves(options: Collection[str]) -> bool:
        return solvable([text for text in requirements if reasons.option(text) not in options])

    at_fault = [option for text in core if (option := reasons.option(text))]
    enough = [option for option in dict.fromkeys(at_fault) if solves([option])]
    sentences += [f"{option} solves it" for option in enough]
    if at_fault and not enough:
        every = dict.fromkeys(option for text in requirements if (option := reasons.option(text)))
        if solves(every):
            sentences.append(f"{' and '.join(every)} together solve it")
    return sentences


def nearest_pythons(python: str, pythons: Iterable[str]) -> list[str]:
    """The other Python versions, the nearest first, of two the older one."""
    minor = int(python.partition(".")[2])
    others = {version for version in pythons if re.fullmatch(r"3\.\d+", version)} - {python}

    def distance(version: str) -> tuple[int, int]:
        number = int(version.partition(".")[2])
        return abs(number - minor), number

    return sorted(others, key=distance)[:MAX_PYTHONS]
