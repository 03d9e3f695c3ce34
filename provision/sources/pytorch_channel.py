"""The pytorch channel: PyTorch's own conda packages, up to 2.5, with NCCL and cuDNN inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provision.catalog import Build, Companion, Release
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.core.types import Pin
from provision.sources.base import (
    Candidate,
    companion_pins,
)
from provision.sources.conda_channel import CondaChannelSource


class PytorchChannel(CondaChannelSource):
    """Builds whose CUDA is chosen by a selector package (pytorch-cuda, cudatoolkit or cpuonly)."""

    name = "pytorch"
    title = "the pytorch channel"
    channels_reason = (
        "the pytorch channel first: the order decides between CUDA and CPU builds",
        "mamba-org/micromamba-docker#388",
    )

    def builds(self, release: Release) -> tuple[Build, ...]:
        return release.pytorch

    def origin(self, release: Release) -> str:
        return release.pytorch_source

    def companions(self, release: Release) -> tuple[Companion, ...]:
        return release.pytorch_companions or release.companions

    def preference(self, candidate: Candidate, platforms: Sequence[Platform]) -> tuple[int, str]:
        version, cuda = candidate.release.version, candidate.cuda
        return 1, f"the default wheel of {version} has another CUDA; the pytorch channel has {cuda}"

    def channels(self, candidate: Candidate) -> tuple[str, ...]:
        """It must come first: the order of channels decides between CUDA and CPU
        (mamba-org/micromamba-docker#388).

        Whether its CUDA lies in the nvidia channel depends on the build.
        """
        if candidate.build is None:
            return (self.name,)
        return tuple(name for name in candidate.build.channels if name != "conda-forge")

    def torch_pins(self, candidate: Candidate, spec: Spec) -> Iterator[Pin]:
        """Build strings are pinned: without one a solver may answer with a CPU build
        (conda/conda#14761)."""
        build, origin = candidate.build, candidate.origin
        if build:
            build_string = build.tag.replace("py3.*", f"py{spec.python}")
            selectors, reason = build.specs, "selects the CUDA variant"
        else:
            build_string = f"py{spec.python}_cpu*"
            selectors, reason = ("cpuonly",), "selects the CPU variant"
        yield Pin(
            manager="conda",
            requirement=f"pytorch::pytorch={candidate.release.version}={build_string}",
            reason="build string pinned",
            source=origin,
        )
        for selector in selectors:
            is_here = selector.startswith(("pytorch-cuda", "cpuonly"))
            requirement = f"pytorch::{selector}" if is_here else selector
            yield Pin(manager="conda", requirement=requirement, reason=reason, source=origin)
        if spec.companions:
            yield from companion_pins(candidate, "conda", "pytorch::{name}={version}")

    def cuda_in_build_string(self, cuda: str) -> str:
        """py3.11_cuda12.1_cudnn8.9.2_0"""
        return cuda
