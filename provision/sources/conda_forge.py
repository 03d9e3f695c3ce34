"""conda-forge: builds of the community, whose NCCL and cuDNN are shared packages that conda's
solver chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision import catalog
from provision.catalog import Build, Companion, Library, Release, version_key
from provision.catalog.facts import facts_table
from provision.catalog.mismatches import NO_SOURCE
from provision.core.platforms import PLATFORMS, Platform
from provision.core.spec_fields import Spec
from provision.core.types import Choice, Pin
from provision.sources.base import REQUESTED, Candidate, Violation, means
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

    def library_violations(
        self, library: Library, candidate: Candidate, spec: Spec, version: str
    ) -> Iterator[Violation]:
        violations = _nccl_violations if library == "nccl" else _cudnn_violations
        yield from violations(candidate, spec, version)

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
                requirement=_matchspec("nccl", spec.nccl, parts=3),
                reason=REQUESTED if spec.nccl else BY_SOLVER,
                source=origin,
            )
        if build and spec.cudnn:
            requirement = _matchspec("cudnn", spec.cudnn, parts=4)
            yield Pin(manager="conda", requirement=requirement, reason=REQUESTED, source=origin)
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
            value=spec.library(library) or BY_SOLVER,
            reason="a shared package on conda-forge, chosen by the solver",
            source=candidate.build.library(library).source or NO_SOURCE,
        )

    def companions(self, release: Release) -> tuple[Companion, ...]:
        """Its solver chooses: torch 2.8 has torchvision 0.24 here and 0.23 among the wheels."""
        names = ("torchvision", "torchaudio")
        return tuple(Companion(name=name, version=None, source=NO_SOURCE) for name in names)


def _nccl_violations(candidate: Candidate, spec: Spec, nccl: str) -> Iterator[Violation]:
    build = candidate.build
    assert build is not None
    available = catalog.nccl_on_conda_forge(build.cuda)
    compatible = [version for version in available if means(nccl, version)]
    floor, floor_source = candidate.floor("nccl", spec.platforms)
    if not compatible:
        minors = dict.fromkeys(map(catalog.minor, available))
        yield Violation(
            axis="nccl",
            fact=f"conda-forge is not known to have NCCL {nccl} for CUDA {build.cuda}; it has "
            f"{', '.join(minors) or 'none'}",
            source=facts_table("nccl")["source"],
        )
    elif floor is None:
        yield Violation(
            axis="nccl",
            fact=f"which NCCL {candidate} takes is not known; the solver will tell",
            source=NO_SOURCE,
            rules_out=False,
        )
    elif all(version_key(version) < version_key(floor) for version in compatible):
        yield Violation(
            axis="nccl",
            fact=f"{candidate} needs NCCL {floor} or later, not {nccl}",
            source=floor_source or NO_SOURCE,
        )


def _cudnn_violations(candidate: Candidate, spec: Spec, cudnn: str) -> Iterator[Violation]:
    """The solver chooses any cuDNN from the build's own on, within its major version."""
    floor, source = candidate.floor("cudnn", spec.platforms)
    if floor is None:
        yield Violation(
            axis="cudnn",
            fact=f"which cuDNN {candidate} takes is not known; the solver will tell",
            source=NO_SOURCE,
            rules_out=False,
        )
        return
    requested, oldest = version_key(cudnn), version_key(floor)
    if requested[0] != oldest[0] or requested < oldest[: len(requested)]:
        yield Violation(
            axis="cudnn",
            fact=f"{candidate} needs cuDNN {floor} or a later {oldest[0]}.x, not {cudnn}",
            source=source or NO_SOURCE,
        )


def _matchspec(package: str, version: str | None, *, parts: int) -> str:
    """A conda requirement for a version given by its first numbers. parts: how many numbers a whole
    version has."""
    if version is None:
        return package
    is_whole = version.count(".") >= parts - 1
    return f"{package}={version}" if is_whole else f"{package}={version}.*"
