"""Packages that must be built with the environment's own torch, and what their builds need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from provision.catalog.facts import cached, facts_table
from provision.core.dataclass import frozen


@frozen
class SourceBuild:
    """One row of source_builds.yml, which says what its fields are."""

    package: str = ""
    needs: tuple[str, ...] = ("setuptools", "wheel", "packaging", "ninja")
    cuda: bool | str = False
    isolation: bool | None = False
    memory_gib: int = 4
    env: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] | None = None
    source: str = ""


@cached
def source_builds() -> Mapping[str, SourceBuild]:
    """The rows by package."""
    rows = {}
    for row in facts_table("source_builds"):
        lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
        rows[row["package"]] = SourceBuild(**{**row, **lists})
    return rows
