"""Why a build does not run with a driver or on a GPU, or perhaps does not, in words."""

from __future__ import annotations

from collections.abc import Iterator

from provision.catalog.hardware import Gpu, cuda_range, runs_on_driver, runs_on_gpu, toolkits
from provision.catalog.releases import Build, version_key
from provision.core.dataclass import frozen
from provision.core.platforms import Platform

NO_SOURCE = "no source says"


@frozen
class Mismatch:
    """A condition that a machine does not meet, or (certain=False) may not meet: no source says.

    through_ptx: the GPU runs the build, but only by compiling its PTX. unlikely: it is improbable that
    the condition is met.
    """

    why: str
    certain: bool
    source: str = NO_SOURCE
    through_ptx: bool = False
    unlikely: bool = False


def driver_mismatches(cuda: str, driver: str, platform: Platform) -> Iterator[Mismatch]:
    """Whether a driver runs programs of a CUDA version."""
    compatibility = runs_on_driver(cuda, driver, platform)
    toolkit = toolkits().get(cuda)
    if toolkit is None or platform not in toolkit.driver_platforms:
        yield possible_mismatch(
            f"which driver CUDA {cuda} needs on {platform} is not known; this one is {driver}"
        )
    elif compatibility != "yes":
        verdict = f"and the driver is {driver}"
        if compatibility == "unknown":
            verdict = f"and whether {driver} is that is not known"
        yield Mismatch(
            why=f"CUDA {cuda} needs driver {toolkit.driver_floor} or later, {verdict}",
            certain=compatibility == "no",
            source=toolkit.driver_source,
        )


def code_mismatches(
    build: Build, gpu: Gpu, driver: str | None, subject: str = "this build"
) -> Iterator[Mismatch]:
    """Whether the build has code that the GPU runs. subject: the build, in a sentence."""
    support = runs_on_gpu(build, gpu, driver)
    toolkit = toolkits().get(build.cuda)
    if support == "ptx":
        yield Mismatch(
            why=f"{subject} holds no code for {gpu.name}, which compiles its PTX when a program "
            "starts; NCCL has none",
            certain=False,
            source=build.architectures_source or NO_SOURCE,
            through_ptx=True,
        )
    elif support == "no" and build.architectures is not None:
        code = ", ".join(build.architectures)
        if build.ptx and driver and runs_on_gpu(build, gpu) == "ptx" and toolkit:
            code += f" and PTX, which needs driver {toolkit.toolkit_driver} to be compiled"
        yield certain_mismatch(
            f"{subject} holds code for {code}, and {gpu.described}",
            f"{build.architectures_source}; {gpu.source}",
        )
    elif support == "no":
        compiled, range_source = cuda_range(gpu)
        why = f"CUDA {build.cuda} compiles nothing for it: {gpu.described}"
        yield certain_mismatch(
            f"{why}, {compiled}" if compiled else why,
            "; ".join(filter(None, (gpu.source, range_source))),
        )
    elif support == "unknown":
        why, newest = "", toolkit.capability_max if toolkit else None
        is_beyond = newest is not None and version_key(gpu.capability) > version_key(newest)
        unlikely = is_beyond and build.architectures is None
        if unlikely:
            why = f"CUDA {build.cuda} compiles for nothing newer than {newest}, and "
        yield Mismatch(
            why=f"{why}whether {subject} holds code for {gpu.name} is not known",
            certain=False,
            unlikely=unlikely,
        )


def certain_mismatch(why: str, source: str = NO_SOURCE) -> Mismatch:
    return Mismatch(why=why, certain=True, source=source)


def possible_mismatch(why: str) -> Mismatch:
    return Mismatch(why=why, certain=False)
