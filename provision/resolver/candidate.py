"""The cells of the matrix: every build that exists, of a release, from a source, for one CUDA or for CPUs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from provision import catalog
from provision.catalog import Build, Release, version_key
from provision.core.types import PLATFORM, PLATFORMS, BuildSource, Platform

Library = Literal["nccl", "cudnn"]
SOURCES: tuple[BuildSource, ...] = ("wheels", "pytorch", "conda-forge")
# How a source is spoken of.
SPOKEN: dict[BuildSource, str] = {
    "wheels": "the wheels",
    "pytorch": "the pytorch channel",
    "conda-forge": "conda-forge",
}


@dataclass(frozen=True, kw_only=True, eq=False)  # each exists once
class Candidate:
    """One build that exists."""

    release: Release
    source: BuildSource
    build: Build | None  # None: the build for CPUs

    @property
    def cuda(self) -> str | None:
        return self.build.cuda if self.build else None

    @property
    def flavor(self) -> str:
        return f"CUDA {self.cuda}" if self.build else "CPU"

    def __str__(self) -> str:
        return f"torch {self.release.version} for {self.flavor} from {SPOKEN[self.source]}"

    @property
    def origin(self) -> str:
        """Where it is known from that this build exists."""
        return self.build.source if self.build else self.release.sources[self.source]

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """Where it exists, or may: conda-forge builds for CPUs on every platform, and no source says of which releases."""
        if self.build:
            return self.build.platforms
        if self.source == "wheels":
            return tuple(
                platform for platform in PLATFORMS if platform in self.release.index_default
            )
        return PLATFORMS if self.source == "conda-forge" else (PLATFORM,)

    def is_known_on(self, platform: Platform) -> bool:
        """Whether a source says that it exists for a platform."""
        if self.build or self.is_index_default(platform):
            return True
        if (
            self.source == "wheels"
        ):  # not the default of the index there; PyTorch's own index may have it
            return platform == PLATFORM
        return any(platform in build.platforms for build in self.release.builds(self.source))

    def on(self, platform: Platform) -> Build | None:
        return self.build.on(platform) if self.build else None

    def is_index_default(self, platform: Platform) -> bool:
        """Whether a package index serves this build as plain `torch==V`."""
        default = self.release.index_default.get(platform)
        return (
            self.source == "wheels"
            and default is not None
            and default.build == (self.build.tag if self.build else "cpu")
        )

    def needs_torch_index(self, platforms: Sequence[Platform]) -> bool:
        """Whether only PyTorch's own wheel index has this build, for one of the platforms at least."""
        return self.source == "wheels" and not all(
            self.is_index_default(platform) for platform in platforms
        )

    def is_named_differently(self, platforms: Sequence[Platform]) -> bool:
        """Whether an index serves it by default on one platform and not on another: `torch==V` here, `torch==V+cpu` there. A line
        for each, told apart by a marker, is not what conda-lock understands (only sys_platform, os_name and platform_system)."""
        return (
            self.source == "wheels"
            and len({self.is_index_default(one) for one in platforms if one in self.platforms}) > 1
        )

    def glibc(self, platforms: Sequence[Platform]) -> str | None:
        """The glibc that it needs, or None where no source says for one of the platforms."""
        needed = [build.glibc if (build := self.on(platform)) else None for platform in platforms]
        return (
            max((glibc for glibc in needed if glibc), key=version_key)
            if needed and all(needed)
            else None
        )

    def floor(
        self, library: Library, platforms: Sequence[Platform]
    ) -> tuple[str | None, str | None]:
        """The oldest NCCL or cuDNN that a conda-forge build takes, on all of the platforms, and its source; None where it is not known."""
        builds = [
            build
            for platform in platforms
            if platform in self.platforms and (build := self.on(platform))
        ]
        facts = [
            (one.nccl_floor, one.nccl_source)
            if library == "nccl"
            else (one.cudnn_floor, one.cudnn_source)
            for one in builds
        ]
        return max(
            ((floor, source) for floor, source in facts if floor),
            key=lambda fact: version_key(fact[0]),
            default=(None, None),
        )

    def preference(self, platforms: Sequence[Platform]) -> tuple[int, str]:
        """The place of this source in what `auto` means, and why: facts decide, never what the network answers."""
        version, cuda = self.release.version, self.cuda
        if self.source == "wheels":
            if self.build is None:
                return 0, "CPU builds come from PyTorch's own wheels"
            if not self.needs_torch_index(platforms):
                return 0, f"the package index's default build of {version} has CUDA {cuda}"
            return 3, f"only PyTorch's own wheel index has {version} with CUDA {cuda}"
        if self.source == "pytorch":
            return (
                1,
                f"the default wheel of {version} has another CUDA; the pytorch channel has {cuda}",
            )
        return (
            2,
            f"neither the default wheel nor the pytorch channel has {version} with CUDA {cuda}",
        )


@functools.cache
def candidates() -> tuple[Candidate, ...]:
    """Every candidate, newest release first; a release's CUDAs newest first, CPU last."""
    return tuple(
        candidate
        for version in reversed(catalog.releases())
        for candidate in candidates_of(version)
    )


@functools.cache
def candidates_of(version: str) -> tuple[Candidate, ...]:
    """The cells of one release."""
    release = catalog.releases()[version]
    found = [
        Candidate(release=release, source=source, build=build)
        for source in SOURCES
        for build in release.builds(source)
    ]
    newest_first = sorted(
        found, key=lambda candidate: version_key(candidate.cuda or "0"), reverse=True
    )
    cpu = [
        Candidate(release=release, source=source, build=None)
        for source in SOURCES
        if release.builds(source)
    ]
    return (*newest_first, *cpu)
