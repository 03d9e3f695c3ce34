"""Why a build does not run with a driver or on a GPU, or perhaps does not, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from provision.catalog.hardware import Gpu, cuda_range, runs_on_driver, runs_on_gpu, toolkits
from provision.catalog.releases import Build, version_key
from provision.core.dataclass import frozen
from provision.core.platforms import PLATFORM, Platform

NO_SOURCE = "no source says"


# What a candidate is judged by, in the order in which a request is read.
Axis = Literal["torch", "cuda", "source", "platform", "python", "gpu", "driver", "glibc"]
Verdict = Literal["fits", "ptx", "unknown", "no"]


@frozen
class Violation:
    """Why a build does not meet a request or a machine, or may not.

    `rules_out` is about choosing a build: some facts must be known before a build is taken, so a
    build may be ruled out although it may fit. `is_certain` distinguishes the two cases.
    """

    axis: Axis
    fact: str
    source: str = NO_SOURCE
    rules_out: bool = True  # false: a drawback, or something that no source says
    is_certain: bool = True  # false: ruled out, if at all, because the fact is not known
    through_ptx: bool = False  # the GPU runs the build only by compiling its PTX
    # No source says, and it is improbable: taken only if the request names the source.
    unlikely: bool = False

    def __str__(self) -> str:
        return f"{self.fact} ({self.source})" if self.source else self.fact

    @property
    def verdict(self) -> Verdict:
        if self.through_ptx:
            return "ptx"
        return "no" if self.rules_out and self.is_certain else "unknown"


def driver_mismatches(cuda: str, driver: str, platform: Platform) -> Iterator[Violation]:
    """Whether a driver runs programs of a CUDA version."""
    compatibility = runs_on_driver(cuda, driver, platform)
    toolkit = toolkits().get(cuda)
    if toolkit is None or platform != PLATFORM:
        yield Violation(
            axis="driver",
            fact=f"which driver CUDA {cuda} needs on {platform} is not known; this one is {driver}",
            rules_out=False,
        )
    elif compatibility != "yes":
        verdict = f"and the driver is {driver}"
        if compatibility == "unknown":
            verdict = f"and whether {driver} is that is not known"
        yield Violation(
            axis="driver",
            fact=f"CUDA {cuda} needs driver {toolkit.driver_floor} or later, {verdict}",
            rules_out=compatibility == "no",
            source=toolkit.driver_source,
        )


def code_mismatches(
    build: Build, gpu: Gpu, driver: str | None, subject: str = "this build"
) -> Iterator[Violation]:
    """Whether the build has code that the GPU runs. subject: the build, in a sentence."""
    support = runs_on_gpu(build, gpu, driver)
    toolkit = toolkits().get(build.cuda)
    if support == "ptx":
        yield Violation(
            axis="gpu",
            fact=f"{subject} holds no code for {gpu.name}, which compiles its PTX when a program "
            "starts; NCCL has none",
            rules_out=False,
            source=build.architectures_source or NO_SOURCE,
            through_ptx=True,
        )
    elif support == "no" and build.architectures is not None:
        code = ", ".join(build.architectures)
        if build.ptx and driver and runs_on_gpu(build, gpu) == "ptx" and toolkit:
            code += f" and PTX, which needs driver {toolkit.toolkit_driver} to be compiled"
        yield Violation(
            axis="gpu",
            fact=f"{subject} holds code for {code}, and {gpu.described}",
            source=f"{build.architectures_source}; {gpu.source}",
        )
    elif support == "no":
        compiled, range_source = cuda_range(gpu)
        why = f"CUDA {build.cuda} compiles nothing for it: {gpu.described}"
        yield Violation(
            axis="gpu",
            fact=f"{why}, {compiled}" if compiled else why,
            source="; ".join(filter(None, (gpu.source, range_source))),
        )
    elif support == "unknown":
        why, newest = "", toolkit.capability_max if toolkit else None
        is_beyond = newest is not None and gpu.capability > version_key(newest)
        unlikely = is_beyond and build.architectures is None
        if unlikely:
            why = f"CUDA {build.cuda} compiles for nothing newer than {newest}, and "
        yield Violation(
            axis="gpu",
            fact=f"{why}whether {subject} holds code for {gpu.name} is not known",
            rules_out=False,
            unlikely=unlikely,
        )
