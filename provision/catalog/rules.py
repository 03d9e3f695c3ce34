"""Rules: what is known to go wrong with which builds, and what follows: a pin, a refusal or a warning.

A row of rules.yml is a condition (every field that it has must hold) and a consequence. `matching_rules` finds the rows that hold; what
is done with them is the matrix's.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from provision.catalog.loading import load
from provision.catalog.releases import Build, Release
from provision.core.types import PLATFORM, BuildSource, Platform

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

Consequence = Literal["pin", "refuse", "warn"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row. Conditions that are None (or empty) hold for everything."""

    id: str
    consequence: Consequence
    reason: str
    source: str
    torch: str = ""  # PEP 440 specifier, as are the next three
    cuda: str | None = None  # never holds for CPU builds
    nccl: str | None = None  # never holds where NCCL's version is not known
    python: str | None = None
    sources: tuple[BuildSource, ...] = ()
    platforms: tuple[Platform, ...] = ()
    package: str | None = None  # the request names a package like this (shell pattern) beside torch
    channels: tuple[str, ...] = ()  # the request lists these channels in this order
    variables: tuple[
        str, ...
    ] = ()  # one of these environment variables is set where the environment runs
    through_ptx: bool = (
        False  # the GPU is newer than all code in the build, which runs only by compiling PTX
    )
    requirement: str | None = None  # what a pin adds
    advice: str = ""  # what to do about a refusal or a warning


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of the file."""
    return tuple(_rule(row) for row in load("rules.yml"))


def matching_rules(
    release: Release,
    build: Build | None,
    source: BuildSource,
    *,
    python: str | None = None,
    nccl: str | None = None,
    platforms: Sequence[Platform] = (PLATFORM,),
    packages: Collection[str] = (),
    channels: Sequence[str] = (),
    variables: Collection[str] = (),
    through_ptx: bool = False,
) -> tuple[Rule, ...]:
    """The rules that hold, in the order of the file.

    build is None for a CPU build. nccl: the version where it is a choice and not the build's own. packages: names that the request
    adds to the environment; variables: names that are set in the environment variables of whoever runs it.
    """
    from packaging.utils import canonicalize_name

    carried = nccl or (build.nccl if build else None)
    names = {canonicalize_name(name) for name in packages}
    return tuple(
        rule
        for rule in rules()
        if (not rule.sources or source in rule.sources)
        and _within(release.version, rule.torch)
        and _within(build.cuda if build else None, rule.cuda)
        and _within(carried if build else None, rule.nccl)
        and _within(python, rule.python)
        and (not rule.platforms or any(platform in rule.platforms for platform in platforms))
        and (rule.package is None or bool(fnmatch.filter(names, rule.package)))
        and (not rule.channels or _in_order(rule.channels, channels))
        and (not rule.variables or any(name in rule.variables for name in variables))
        and (through_ptx or not rule.through_ptx)
    )


def _rule(row: dict[str, Any]) -> Rule:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Rule(**fields)


def _within(version: str | None, specifier: str | None) -> bool:
    """Whether a version is known and within; no specifier asks for nothing."""
    if not specifier:
        return True
    return version is not None and _parsed(specifier).contains(version)


@functools.cache
def _parsed(specifier: str) -> SpecifierSet:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier)


def _in_order(wanted: Sequence[str], listed: Sequence[str]) -> bool:
    places = [listed.index(name) for name in wanted if name in listed]
    return len(places) == len(wanted) and places == sorted(places)
