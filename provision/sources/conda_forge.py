"""conda-forge: builds of the community, whose NCCL and cuDNN are shared packages that conda's
solver chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision.catalog import Build, Companion, Library, Release
from provision.catalog.mismatches import NO_SOURCE
from provision.core.platforms import PLATFORMS, Platform
from provision.core.spec_fields import Spec
from provision.core.types import Choice, Pin
from provision.sources.base import Candidate
from provision.sources.conda_channel import CondaChannelSource

# A request for one version of the package that decides which CUDA libraries are installed.
CUDA_VERSION = re.compile(r"(?:\S+::)?cuda-version\s*={0,2}\s*(\d+\.\d+)(?:\.\*)?")
BY_SOLVER = "chosen by the solver"
COMPANION_REASON = "conda-forge builds each torchvision for one torch, and its records say which"
COMPANION_SOURCE = "conda-forge linux-64 repodata records (copy of 2026-11-21)"


class CondaForge(CondaChannelSource):
    """Builds of the pytorch-cpu feedstock."""

    name = "conda-forge"
    title = "conda-forge"
    solver_chooses_libraries = True

    def builds(self, release: Release) -> tuple[Build, ...]:
        return release.conda_forge

    def cxx11_abi(self, torch: str, cuda: str | None, platform: str) -> bool:
        """Its compilers' default (conda-forge/pytorch-cpu-feedstock)."""
        return True

    def origin(self, release: Release) -> str:
        return release.conda_forge_source

    def cpu_platforms(self, release: Release) -> tuple[Platform, ...]:
        """It builds for CPUs on every platform; no source says of which releases."""
        return PLATFORMS

    def preference(self, candidate: Candidate, platforms: Sequence[Platform]) -> tuple[int, str]:
        version, cuda = candidate.release.version, candidate.cuda
        reason = f"neither the default wheel nor the pytorch channel has {version} with CUDA {cuda}"
        return 2, reason

    def channels(self, candidate: Candidate) -> tuple[str, ...]:
        return ()  # it is the default, and a request may name a mirror of it in its place

    def torch_pins(self, candidate: Candidate, spec: Spec) -> Iterator[Pin]:
        release, build, origin = candidate.release, candidate.build, candidate.origin
        torch = build.specs[0] if build else f"pytorch={release.version}=cpu*"
        yield Pin(manager="conda", requirement=torch, reason="build string pinned", source=origin)
        if build:
            matches = filter(None, (CUDA_VERSION.fullmatch(text.strip()) for text in spec.conda))
            cuda = next((match[1] for match in matches), build.cuda)
            for requirement in build.specs[1:]:
                # The request may name another minor version: the build's own records say with
                # which it runs (cuda-version >=12.6,<13), and they bind the solver.
                if cuda != build.cuda:
                    continue
                yield Pin(
                    manager="conda",
                    requirement=requirement,
                    reason="the CUDA of that build",
                    source=origin,
                )
            yield Pin(
                manager="conda",
                requirement="nccl",
                reason=BY_SOLVER,
                source=origin,
            )
        if spec.companions:
            yield Pin(
                manager="conda",
                requirement=f"torchvision=*={'cuda*' if build else 'cpu*'}",
                reason=COMPANION_REASON,
                source=COMPANION_SOURCE,
            )

    def library_choice(self, library: Library, candidate: Candidate, spec: Spec) -> Choice:
        assert candidate.build is not None
        return Choice(
            what=library,
            value=BY_SOLVER,
            reason="a shared package on conda-forge, chosen by the solver",
            source=candidate.build.library(library)[1] or NO_SOURCE,
        )

    def companions(self, release: Release) -> tuple[Companion, ...]:
        """Its solver chooses: torch 2.8 has torchvision 0.24 here and 0.23 among the wheels."""
        names = ("torchvision", "torchaudio")
        return tuple(Companion(name=name, version=None, source=NO_SOURCE) for name in names)
