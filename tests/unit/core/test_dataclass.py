"""Dataclasses with shared methods behave as those of the standard library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from provision.core.dataclass import frozen


def declared(decorator: Callable[[type], Any]) -> Any:
    @decorator
    class Base:
        """Text."""

        name: str
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)

    @decorator
    class Package(Base):
        size: int = 1
        hidden: int = dataclasses.field(default=2, repr=False)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("size")

        @cached_property
        def double(self) -> int:
            return self.size * 2

    return Package


OURS = declared(frozen)
STANDARD = declared(dataclasses.dataclass(frozen=True, kw_only=True))

USES: dict[str, Callable[[Any], Any]] = {
    "repr": lambda kind: repr(kind(name="a", size=3)),
    "equal": lambda kind: kind(name="a") == kind(name="a"),
    "other value": lambda kind: kind(name="a") == kind(name="b"),
    "not compared": lambda kind: kind(name="a", tags=["x"]) == kind(name="a"),
    "other type": lambda kind: kind(name="a") == "a",
    "hash": lambda kind: len({kind(name="a"), kind(name="a"), kind(name="b")}),
    "factory": lambda kind: kind(name="a").tags is kind(name="a").tags,
    "replace": lambda kind: repr(dataclasses.replace(kind(name="a"), size=4)),
    "asdict": lambda kind: dataclasses.asdict(kind(name="a")),
    "fields": lambda kind: [field.name for field in dataclasses.fields(kind)],
    "cached": lambda kind: kind(name="a", size=4).double,
    "missing": lambda kind: kind(size=1),
    "unexpected": lambda kind: kind(name="a", color=1),
    "positional": lambda kind: kind("a"),
    "refused": lambda kind: kind(name="a", size=-1),
    "assigned": lambda kind: setattr(kind(name="a"), "name", "b"),
    "deleted": lambda kind: delattr(kind(name="a"), "name"),
}


@pytest.mark.parametrize("use", USES)
def test_as_the_standard_library(use: str) -> None:
    def result(kind: Any) -> object:
        try:
            return USES[use](kind)
        except (TypeError, ValueError, AttributeError) as error:
            return type(error)

    assert result(OURS) == result(STANDARD)
