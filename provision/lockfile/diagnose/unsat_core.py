"""LockFinding which of many requirements are at fault, whatever the solver, and naming them with their reasons."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from provision.core.types import Pin

T = TypeVar("T")

# A person waits for this; what is not found by then is told in general words, and the solver's own are there.
BUDGET_S = 10.0
TORCH = ("torch", "pytorch")
USERS, PYTHONS, TORCHS, RULES = range(4)  # whose a requirement is
MANY = 3
# What comes along unasked, and the option that leaves it out; what that is in a sentence.
SPARED = {
    "torchvision": "--no-companions",
    "torchaudio": "--no-companions",
    "ipykernel": "--no-jupyter",
    "xxhash": "--no-fast-checkpoints",
    "python-xxhash": "--no-fast-checkpoints",
}
LEFT_OUT = {
    "--no-companions": "torchvision and torchaudio",
    "--no-jupyter": "ipykernel",
    "--no-fast-checkpoints": "xxhash",
}


class OutOfTime(Exception):
    """The budget is used up."""


class Budget:
    """Seconds for all that is tried in one explanation."""

    def __init__(self, seconds: float = BUDGET_S) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise OutOfTime


def minimal(elements: Sequence[T], solvable: Callable[[Sequence[T]], bool]) -> list[T]:
    """Some of the elements that have no answer together, and of which none can be suggest_options, in the order given. All of them together
    have no answer. Where there are several such sets, those in front are kept. (Junker's QuickXplain, AAAI 2004: few questions.)"""
    if len(elements) < 2:
        return list(elements)
    return _minimal([], False, list(elements), solvable)


def _minimal(
    given: list[T], added: bool, elements: list[T], solvable: Callable[[Sequence[T]], bool]
) -> list[T]:
    if added and not solvable(given):
        return []
    if len(elements) == 1:
        return elements
    first, second = elements[: len(elements) // 2], elements[len(elements) // 2 :]
    from_second = _minimal(given + first, True, second, solvable)
    from_first = _minimal(given + from_second, bool(from_second), first, solvable)
    return from_first + from_second


@dataclass(frozen=True)
class PinReasons:
    """Requirement -> why it is there, and where that is known from."""

    reasons: Mapping[str, str]
    otherwise: str = "written into environment.yml by hand"

    @classmethod
    def of(cls, pins: Iterable[Pin], more: Mapping[str, str] | None = None) -> PinReasons:
        return cls(
            {pin.requirement: f"{pin.reason}; {_short(pin.source)}" for pin in pins}
            | dict(more or {})
        )

    def listed(self, requirements: Sequence[str]) -> str:
        """Requirements with their reasons, or many without."""
        if len(requirements) > MANY:
            return ", ".join(f"`{text}`" for text in requirements)
        return " and ".join(
            f"`{text}` ({self.reasons.get(text, self.otherwise)})" for text in requirements
        )

    def is_users(self, requirement: str) -> bool:
        """Whether it is somebody's own wish, beside which torch."""
        own = requirement not in self.reasons or self.reasons[requirement].startswith("asked for")
        return own and not _is_torch(requirement)

    def option(self, requirement: str) -> str | None:
        """The option that would leave out what came along unasked."""
        return None if self.is_users(requirement) else SPARED.get(name_of(requirement))

    def weight(self, requirement: str) -> int:
        """The less, the more a requirement says about what was asked for: what is at fault is sought among these first."""
        if self.is_users(requirement):
            return USERS
        return (
            PYTHONS
            if name_of(requirement) == "python"
            else TORCHS
            if _is_torch(requirement)
            else RULES
        )


def _is_torch(requirement: str) -> bool:
    return name_of(requirement) in TORCH


def name_of(requirement: str) -> str:
    """The package that a requirement of either kind is about."""
    return re.split(r"[\s=<>!~;\[@]", requirement.rpartition("::")[2], maxsplit=1)[0]


def suggest_options(
    requirements: Sequence[str],
    core: Sequence[str],
    why: PinReasons,
    solvable: Callable[[Sequence[str]], bool],
) -> list[str]:
    """What has an answer, in words: each option that leaves out something at fault and helps by itself; or else those that it takes
    together. solvable: asked about what remains of the requirements."""

    def helps(*options: str) -> bool:
        return solvable([text for text in requirements if why.option(text) not in options])

    at_fault, together = _options(core, why), _options(requirements, why)
    by_itself = [option for option in at_fault if helps(option)]
    if by_itself or not at_fault or len(together) == 1 or not helps(*together):
        return [f"{without(option)} has an answer" for option in by_itself]
    for option in list(together):
        if helps(*(fewer := [one for one in together if one != option])):
            together = fewer
    return [f"{' and '.join(map(without, together))} together have an answer"]


def _options(requirements: Sequence[str], why: PinReasons) -> list[str]:
    return list(dict.fromkeys(option for text in requirements if (option := why.option(text))))


def without(option: str) -> str:
    """An option that leaves something out, with what that is."""
    return f"{option} (without {LEFT_OUT[option]})"


def _short(source: str) -> str:
    """The first of several sources, without the end of its commit."""
    return re.sub(r"@([0-9a-f]{8})[0-9a-f]{32}", r"@\1", source.split("; ")[0])
