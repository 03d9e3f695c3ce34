"""PyTorch's own wheels: on a package index one CUDA build for each release, the others on PyTorch's
own wheel index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision.catalog import Build, Release, minor
from provision.core.platforms import PLATFORM, PLATFORMS, Platform
from provision.core.spec_fields import Spec
from provision.core.types import LockedPackage, Manager, Pin, Resolution
from provision.sources.base import Candidate, Source, companion_pins, torch_reason

PIP = Pin(
    manager="conda",
    requirement="pip",
    reason="conda-lock installs wheels with the prefix's own pip",
    source="conda-lock 4",
)


class PypiWheels(Source):
    """torch as a wheel, with Python from conda."""

    name = "wheels"
    title = "the wheels"
    is_plural = True
    manager: Manager = "pip"
    torch_package = "torch"

    def builds(self, release: Release) -> tuple[Build, ...]:
        return release.wheels

    def cxx11_abi(self, torch: str, cuda: str | None, platform: str) -> bool:
        """Of 2.6, those for CUDA 12.6 (release notes of 2.6.0) and for aarch64 have it.

        By the symbols of libc10.so in the index's wheels (c10::Error's constructor): 2.0.1 to 2.6.0
        (CUDA 12.4) for x86_64 and 2.1.2 to 2.5.1 for aarch64 have the old one; 2.6.0 for aarch64,
        2.7.0 and 2.14.0 the new.
        """
        is_of_2_6 = minor(torch) == "2.6" and (cuda == "12.6" or platform == "linux-aarch64")
        return is_of_2_6 or super().cxx11_abi(torch, cuda, platform)

    def origin(self, release: Release) -> str:
        return release.index_default[PLATFORM].source

    def cpu_platforms(self, release: Release) -> tuple[Platform, ...]:
        return tuple(platform for platform in PLATFORMS if platform in release.index_default)

    def has_cpu_build(self, release: Release, platform: Platform) -> bool:
        # Where the CPU build is not the index's default, PyTorch's own index may have it.
        return self.is_index_default(release, None, platform) or platform == PLATFORM

    def cpu_pythons(self, release: Release, platform: Platform) -> tuple[str, ...]:
        return release.index_default[platform].python

    def companion_pythons(self, release: Release) -> tuple[str, ...] | None:
        return release.companions_python

    def is_index_default(self, release: Release, build: Build | None, platform: Platform) -> bool:
        default = release.index_default.get(platform)
        tag = build.tag if build else "cpu"
        is_on_index = build is None or build.on_pypi  # a lab's nightly is not
        return default is not None and default.build == tag and is_on_index

    def preference(self, candidate: Candidate, platforms: Sequence[Platform]) -> tuple[int, str]:
        version, cuda = candidate.release.version, candidate.cuda
        if candidate.build is None:
            return 0, "CPU builds come from PyTorch's own wheels"
        if candidate.needs_torch_index(platforms):
            return 3, f"only PyTorch's own wheel index has {version} with CUDA {cuda}"
        return 0, f"the package index's default build of {version} has CUDA {cuda}"

    def local_version(self, candidate: Candidate) -> str:
        """At run time every wheel has a local version; the file names of the index's default builds
        have none."""
        tag = candidate.build.tag if candidate.build else "cpu"
        return f"{candidate.release.version}+{tag}"

    def torch_pins(self, candidate: Candidate, spec: Spec) -> Iterator[Pin]:
        """PyTorch's wheels are named by their build, except the one that a package index serves by
        default."""
        release, build = candidate.release, candidate.build
        local_version = self.local_version(candidate)
        suffix, described = "", "the index default build"
        if candidate.needs_torch_index(spec.platforms):
            suffix, described = "+" + local_version.partition("+")[2], "this build"
        origin = build.source if build else "requested with --cpu"
        reason = torch_reason(spec, candidate)
        yield PIP
        yield Pin(
            manager="pip",
            requirement=f"torch=={release.version}{suffix}",
            reason=f"{reason}; {described} is {candidate.flavor} ({local_version})",
            source=origin,
        )
        if spec.companions:
            # On aarch64 some companions have no local version (pytorch/vision#9330). Without one in
            # the pin, the index of this build still serves its own first.
            companion_suffix = "" if "linux-aarch64" in spec.platforms else suffix
            yield from companion_pins(candidate, "pip", "{name}=={version}" + companion_suffix)
        builds = [candidate.build_for(platform) for platform in spec.platforms]
        if build and build.nccl and all(locked and locked.nccl_is_package for locked in builds):
            yield Pin(
                manager="pip",
                requirement=f"nvidia-nccl-cu{build.cuda.split('.')[0]}=={build.nccl}",
                reason="the NCCL that this torch was built for; two versions in one process break "
                "collectives",
                source=build.nccl_source or origin,
            )

    def locked_torch_problem(
        self, packages: Sequence[LockedPackage], torch: LockedPackage, resolution: Resolution
    ) -> str | None:
        version, _, local = torch.version.partition("+")
        if version != resolution.torch:
            return f"The locked torch is {torch.version}, not {resolution.torch}."
        requested_local = resolution.local_version.partition("+")[2]
        if resolution.needs_local_build:
            is_requested_build = local == requested_local
        else:
            is_requested_build = local in ("", requested_local)
        if not is_requested_build:
            return f"The locked torch is not the {requested_local} build."
        # Since torch 1.13 CUDA is in packages that torch requires; before, it was inside the wheel.
        has_cuda_packages = any(
            pin.requirement.startswith("nvidia-nccl-cu") for pin in resolution.pins
        )
        if has_cuda_packages and not any(
            dependency.startswith(("nvidia-", "cuda-")) for dependency in torch.depends
        ):
            return (
                f"The request is for CUDA {resolution.cuda}, but the locked torch requires no CUDA "
                "libraries: it is a CPU build."
            )
        return _locked_nccl_problem(packages, resolution)


def _locked_nccl_problem(packages: Sequence[LockedPackage], resolution: Resolution) -> str | None:
    """The NVIDIA wheels show which CUDA a wheel without a local version was built for."""
    nccl = [package for package in packages if re.fullmatch(r"nvidia-nccl-cu\d+", package.name)]
    if not nccl:
        return None
    if resolution.cuda is None:
        return "The request is for a CPU environment, but the lock has NCCL."
    if len(nccl) > 1:
        names = []
        for package in nccl:
            requiring = [other.name for other in packages if package.name in other.needs]
            names.append(f"{package.name} (for {', '.join(requiring) or 'the request'})")
        return (
            f"The lock mixes NVIDIA wheel families: {', '.join(names)}. Request only packages for "
            f"CUDA {resolution.cuda}."
        )
    if resolution.nccl and nccl[0].version != resolution.nccl:
        return f"The locked NCCL is {nccl[0].version}, not {resolution.nccl}."
    return None
