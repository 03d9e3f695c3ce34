"""Versions made of numbers and dots, and how they compare."""

from __future__ import annotations

import functools


def minor(version: str) -> str:
    """2.3 of 2.3.1."""
    return ".".join(version.split(".")[:2])


@functools.cache
def version_key(version: str) -> tuple[int, ...]:
    """Numeric order for versions made of numbers and dots: 2.10 after 2.9."""
    return tuple(int(part) for part in version.split("."))
