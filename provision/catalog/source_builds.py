"""Packages that must be built with the environment's own torch, and what their builds need."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from provision.catalog.data_files import load


@dataclass(frozen=True, kw_only=True)
class SourceBuild:
    """One row of source_builds.yml, which says what its fields are."""

    package: str = ""
    needs: tuple[str, ...] = ("setuptools", "wheel", "packaging", "ninja")
    cuda: bool = False
    instead: str = ""
    source: str = ""


@functools.cache
def source_builds() -> Mapping[str, SourceBuild]:
    """The rows by package."""
    rows = {}
    for row in load("source_builds.yml"):
        needs = tuple(row.pop("needs", SourceBuild.needs))
        rows[row["package"]] = SourceBuild(**row, needs=needs)
    return rows
