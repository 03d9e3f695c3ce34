"""Rules: known problems of builds, and their consequences (a pin, a refusal or a warning).

A row of rules.yml is a condition (every field that it has must hold) and a consequence.
`matching_rules` returns the rows that hold; the resolver decides what to do with them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Literal

from provision.catalog.facts import cached, facts_table
from provision.catalog.releases import Build, Release
from provision.core.dataclass import frozen
from provision.core.platforms import PLATFORM, Platform
from provision.core.types import BuildSource

Consequence = Literal["pin", "refuse", "warn"]


@frozen
class CompatibilityRule:
    """One row. Conditions that are None (or empty) hold for everything."""

    id: str
    consequence: Consequence
    reason: str
    source: str
    # PEP 440 specifiers: cuda never holds for CPU builds, nccl never where NCCL's version is not
    # known.
    torch: str = ""
    cuda: str | None = None
    nccl: str | None = None
    python: str | None = None
    sources: tuple[BuildSource, ...] = ()
    platforms: tuple[Platform, ...] = ()
    # A shell pattern: the request adds a package of that name.
    package: str | None = None
    # The request lists these channels in this order.
    channels: tuple[str, ...] = ()
    # The GPU is newer than all code in the build, which runs only by compiling PTX.
    through_ptx: bool = False
    requirement: str | None = None  # what a pin adds
    advice: str = ""  # what to do about a refusal or a warning


@frozen
class CudaPackages:
    """Packages that exist once for each CUDA. endings, extras: of their names, by CUDA's major
    version."""

    packages: tuple[str, ...]
    source: str
    endings: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)


@cached
def rules() -> tuple[CompatibilityRule, ...]:
    """All rules, in the order of the file."""
    table = []
    for row in facts_table("rules"):
        lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
        table.append(CompatibilityRule(**{**row, **lists}))
    return tuple(table)


@cached
def cuda_packages() -> tuple[CudaPackages, ...]:
    """The rows of cuda_packages.yml, in the order of the file."""
    rows = facts_table("cuda_packages")
    return tuple(CudaPackages(**{**row, "packages": tuple(row["packages"])}) for row in rows)


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
    through_ptx: bool = False,
) -> tuple[CompatibilityRule, ...]:
    """The rules that hold, in the order of the file.

    build is None for a CPU build. nccl: the version if it is a choice and not the build's own.
    packages: names that the request adds to the environment.
    """
    from packaging.utils import canonicalize_name

    nccl_version = (nccl or build.nccl) if build else None
    package_names = {canonicalize_name(name) for name in packages}
    matching = []
    for rule in rules():
        has_versions = (
            _contains(rule.torch, release.version)
            and _contains(rule.cuda, build.cuda if build else None)
            and _contains(rule.nccl, nccl_version)
            and _contains(rule.python, python)
        )
        if not has_versions or (rule.sources and source not in rule.sources):
            continue
        if rule.platforms and not any(platform in rule.platforms for platform in platforms):
            continue
        if rule.package is not None and not fnmatch.filter(package_names, rule.package):
            continue
        indices = [channels.index(name) for name in rule.channels if name in channels]
        if len(indices) < len(rule.channels) or indices != sorted(indices):
            continue
        if rule.through_ptx and not through_ptx:
            continue
        matching.append(rule)
    return tuple(matching)


@cache
def _contains(specifier: str | None, version: str | None) -> bool:
    """Whether a version is known and satisfies the specifier; without a specifier, any does."""
    from packaging.specifiers import SpecifierSet

    if not specifier:
        return True
    return version is not None and SpecifierSet(specifier).contains(version, prereleases=True)
