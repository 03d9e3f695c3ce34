"""The interface of a source of PyTorch builds, and its candidates.

A source (PyTorch's wheels, the pytorch channel, conda-forge) is one object of a class derived
from `Source`. Code that depends on the source calls the candidate's source and never compares its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provision import catalog
from provision.catalog import (
    Build,
    Companion,
    Library,
    Release,
    Toolkit,
    TorchBuild,
    version_key,
)
from provision.catalog.mismatches import NO_SOURCE
from provision.core.platforms import PLATFORM, Platform
from provision.core.spec_fields import Spec
from provision.core.types import Choice, LockedPackage, Manager, Pin, Resolution

NOT_KNOWN = "not known"
REQUESTED = "requested"
COMPANION = "the release made for this torch"


@dataclass(frozen=True, kw_only=True, eq=False)  # each exists once
class Candidate:
    """One build that exists: of a release, from a source, for one CUDA version or for CPUs."""

    release: Release
    source: Source
    build: Build | None  # None: the build for CPUs

    @property
    def cuda(self) -> str | None:
        return self.build.cuda if self.build else None

    @property
    def flavor(self) -> str:
        return f"CUDA {self.cuda}" if self.build else "CPU"

    def __str__(self) -> str:
        return f"torch {self.release.version} for {self.flavor} from {self.source.title}"

    @property
    def origin(self) -> str:
        """The source of the fact that this build exists."""
        return self.build.source if self.build else self.source.origin(self.release)

    @property
    def platforms(self) -> tuple[Platform, ...]:
        """The platforms that it exists for, or may exist for."""
        return self.build.platforms if self.build else self.source.cpu_platforms(self.release)

    def common_platforms(self, platforms: Sequence[Platform]) -> tuple[Platform, ...]:
        """Those of the platforms that it exists for."""
        return tuple(platform for platform in platforms if platform in self.platforms)

    def build_for(self, platform: Platform) -> Build | None:
        """The build with the facts of one platform; None for the build for CPUs."""
        return self.build.for_platform(platform) if self.build else None

    @property
    def toolkit(self) -> Toolkit | None:
        """The toolkit of its CUDA, if a source says something of it."""
        return catalog.toolkits().get(self.cuda or "")

    def is_index_default(self, platform: Platform) -> bool:
        """Whether a package index serves this build as plain `torch==V`."""
        return self.source.is_index_default(self.release, self.build, platform)

    def needs_torch_index(self, platforms: Sequence[Platform]) -> bool:
        """Whether for one of the platforms only PyTorch's own wheel index has this build."""
        if self.source.manager != "pip":
            return False
        return not all(self.is_index_default(platform) for platform in platforms)

    def is_named_differently(self, platforms: Sequence[Platform]) -> bool:
        """Whether it is the index's default on one platform and not on another: `torch==V` here and
        `torch==V+cpu` there.

        One line for each with a marker would be needed, and conda-lock understands only
        sys_platform, os_name and platform_system as markers.
        """
        answers = {self.is_index_default(platform) for platform in self.common_platforms(platforms)}
        return len(answers) > 1

    def glibc(self, platforms: Sequence[Platform]) -> tuple[str | None, str | None]:
        """The glibc that it needs, and the source of that; None if not known for one of the
        platforms."""
        newest: tuple[str | None, str | None] = (None, None)
        for platform in platforms:
            build = self.build_for(platform)
            if build is None or not build.glibc:
                return None, None
            if newest[0] is None or version_key(build.glibc) > version_key(newest[0]):
                newest = (build.glibc, build.glibc_source)
        return newest


class Source:
    """One place that PyTorch builds come from.

    Every question whose answer differs by source is a method here. The usual answers are given; what
    raises NotImplementedError is each source's own.
    """

    name: str  # in spec.yml, in options and in JSON
    title: str  # within a sentence
    is_plural = False  # whether the title takes a plural verb
    manager: Manager  # what installs torch and the packages that go with it
    torch_package: str  # the name of the torch package in a lock
    # Why conda's channels are in this order, and the source of that.
    channels_reason = ("the default", "provision")
    # Whether NCCL and cuDNN are shared packages whose versions conda's solver chooses.
    solver_chooses_libraries = False

    # Which builds exist.

    def torch_build(self, torch: str, cuda: str | None, platform: str) -> TorchBuild:
        """What extensions of this source's torch are compiled against."""
        return TorchBuild(torch=torch, cuda=cuda, cxx11_abi=self.cxx11_abi(torch, cuda, platform))

    def cxx11_abi(self, torch: str, cuda: str | None, platform: str) -> bool:
        """Whether torch has the C++ ABI of GCC 5.

        PyTorch's builds do from 2.7 on (release notes of pytorch/pytorch 2.7.0);
        torch.compiled_with_cxx11_abi() of 2.3.1+cu121 is False.
        """
        return version_key(torch) >= version_key("2.7")

    def builds(self, release: Release) -> tuple[Build, ...]:
        raise NotImplementedError

    def origin(self, release: Release) -> str:
        """The source of its list of builds of a release."""
        raise NotImplementedError

    def cpu_platforms(self, release: Release) -> tuple[Platform, ...]:
        """The platforms that its CPU build of a release exists for, or may exist for."""
        return (PLATFORM,)

    def has_cpu_build(self, release: Release, platform: Platform) -> bool:
        """Whether it is known to have a CPU build of a release for a platform."""
        return any(platform in build.platforms for build in self.builds(release))

    def cpu_pythons(self, release: Release, platform: Platform) -> tuple[str, ...]:
        """The Pythons that its CPU build is made for."""
        raise NotImplementedError

    def companions(self, release: Release) -> tuple[Companion, ...]:
        """torchvision and torchaudio, as it pairs them with a release."""
        return release.companions

    def companion_pythons(self, release: Release) -> tuple[str, ...] | None:
        """The Pythons that its torchvision is built for, if those are fewer than torch's."""
        return None

    def is_index_default(self, release: Release, build: Build | None, platform: Platform) -> bool:
        """Whether a package index serves a build as plain `torch==V`."""
        return False

    def preference(self, candidate: Candidate, platforms: Sequence[Platform]) -> tuple[int, str]:
        """The rank of this source in `auto` (lower is better) and why.

        Facts decide, never what the network answers.
        """
        raise NotImplementedError

    # What a build is in environment.yml and in the lock.

    def local_version(self, candidate: Candidate) -> str:
        """What `torch.__version__` says."""
        return candidate.release.version

    def channels(self, candidate: Candidate) -> tuple[str, ...]:
        """The conda channels that must come before those of the request."""
        return ()

    def torch_pins(self, candidate: Candidate, spec: Spec) -> Iterator[Pin]:
        """torch and its companions as requirements. The spec is settled: its Python is chosen."""
        raise NotImplementedError

    def locked_torch_problem(
        self, packages: Sequence[LockedPackage], torch: LockedPackage, resolution: Resolution
    ) -> str | None:
        """The problem if the locked torch is not the build of the resolution."""
        raise NotImplementedError

    def is_build_string_of(self, build_string: str, cuda: str | None) -> bool:
        """Whether a conda build string is of a CUDA version, or of no CUDA."""
        return False

    # Why: for `matrix explain` and the passport.

    def library_choice(self, library: Library, candidate: Candidate, spec: Spec) -> Choice:
        """Which NCCL or cuDNN the environment gets. The first platform of the request counts."""
        build = candidate.build_for(spec.platforms[0])
        assert build is not None
        version, source = build.library(library)
        reason = "the one that the build was made with; cannot be chosen"
        if library == "nccl" and build.nccl_is_package:
            reason = "a package of its own: the exact version that torch's metadata pins"
        return Choice(
            what=library,
            value=version or NOT_KNOWN,
            reason=reason,
            source=(source if version else None) or NO_SOURCE,
        )


def means(prefix: str, version: str | None) -> bool:
    """Whether a prefix covers a version: 2.20 means 2.20 and every 2.20.x."""
    return version is not None and (version == prefix or version.startswith(prefix + "."))


def companion_pins(candidate: Candidate, manager: Manager, form: str) -> Iterator[Pin]:
    """torchvision and torchaudio of the release, where the source has them. form: the requirement,
    with {name} and {version}. Of a release that only a package index has: the torchvision that goes with
    it, newer than all that the facts have."""
    if candidate.release.from_index:
        known = [release.companions[0].version for release in catalog.releases().values()]
        yield Pin(
            manager=manager,
            requirement=f"torchvision>={max(filter(None, known), key=version_key)}",
            reason=COMPANION,
            source="the package index",
        )
    for companion in candidate.source.companions(candidate.release):
        if companion.version:
            yield Pin(
                manager=manager,
                requirement=form.format(name=companion.name, version=companion.version),
                reason=COMPANION,
                source=companion.source,
            )


def torch_reason(spec: Spec, candidate: Candidate) -> str:
    if spec.torch == candidate.release.version:
        return REQUESTED
    return f"newest {spec.torch} release"
