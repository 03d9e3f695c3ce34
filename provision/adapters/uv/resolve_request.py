"""What uv resolves, for one platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from provision.catalog.local_builds import TorchBuild
from provision.core.dataclass import frozen
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.platforms import PLATFORM, Platform

# The glibc versions that uv --python-platform takes (uv pip compile --help); the newest that is not
# above the requested one is used.
UV_GLIBC = (
    "2.17",
    "2.28",
    "2.31",
    "2.32",
    "2.33",
    "2.34",
    "2.35",
    "2.36",
    "2.37",
    "2.38",
    "2.39",
    "2.40",
)
UV_MACHINE: Mapping[Platform, str] = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


def python_platform(platform: Platform, glibc: str) -> str:
    """As uv's option --python-platform has it."""
    return f"{UV_MACHINE[platform]}-manylinux_{glibc.replace('.', '_')}"


@frozen
class ResolveRequest:
    """What to resolve, for one platform."""

    requirements: tuple[str, ...]
    python: str
    glibc: str
    platform: Platform = PLATFORM
    # Versions by name of conda's packages: they bind, and are no part of the answer.
    provided: Mapping[str, str] = field(default_factory=dict)
    # Requirements that limit a package without asking for it.
    constraints: tuple[str, ...] = ()
    # Versions by name of an earlier lock: they stay where they can.
    prefer: Mapping[str, str] = field(default_factory=dict)
    # The requirements that are new since that lock; None if any of them may be.
    new_requirements: tuple[str, ...] | None = None
    # The folder of PyTorch's own wheel index that holds the requested build.
    build_path: str | None = None
    # YYYY-MM-DD: files uploaded after that day (UTC), or without an upload time, are invisible.
    as_of: str | None = None
    # Where named packages come from, and from nowhere else: items of spec.yml's `indexes` and
    # `find_links`, after the key and a colon.
    sources: tuple[str, ...] = ()
    # What wheels for one torch must be built for; None while the release is open.
    torch: TorchBuild | None = None
    # The answer names files by their canonical URLs, wherever they are read.
    mirrors: Mirrors = NO_MIRRORS
