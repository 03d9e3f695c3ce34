"""Why a build does not run with a driver or on a GPU, or perhaps does not, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from provision.catalog.hardware import Gpu, runs_on_driver, runs_on_gpu, toolkits
from provision.catalog.releases import Build
from provision.core.platforms import Platform


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A condition that a machine does not meet, or (certain=False) may not meet: no source says."""

    why: str
    certain: bool


def driver_mismatches(cuda: str, driver: str, platform: Platform) -> Iterator[Mismatch]:
    """Whether a driver runs programs of a CUDA version."""
    compatibility = runs_on_driver(cuda, driver, platform)
    toolkit = toolkits().get(cuda)
    if compatibility == "no" and toolkit:
        yield certain_mismatch(f"driver {driver}; CUDA {cuda} needs {toolkit.driver_floor}")
    elif compatibility == "unknown" and toolkit and platform in toolkit.driver_platforms:
        yield possible_mismatch(
            f"driver {driver} may or may not run CUDA {cuda}, which needs {toolkit.driver_floor}"
        )
    elif compatibility == "unknown":
        yield possible_mismatch(
            f"no source says which driver CUDA {cuda} needs on {platform}; this one is {driver}"
        )


def code_mismatches(build: Build, gpu: Gpu, driver: str) -> Iterator[Mismatch]:
    """Whether the build has code that the GPU runs."""
    compatibility = runs_on_gpu(build, gpu, driver)
    gpu_name = gpu.name
    if gpu.name != gpu.architecture:
        gpu_name = f"{gpu.name} ({gpu.architecture})"
    architectures = ", ".join(build.architectures or ())
    if compatibility == "no" and build.architectures is None:
        yield certain_mismatch(f"{gpu_name}; CUDA {build.cuda} compiles nothing for it")
    elif compatibility == "no" and runs_on_gpu(build, gpu) == "ptx":
        compiler = toolkits()[build.cuda].toolkit_driver  # known: it is how "no" was found
        yield certain_mismatch(
            f"{gpu_name}; this build has {architectures} and PTX, and compiling that needs driver "
            f"{compiler}"
        )
    elif compatibility == "no":
        ptx = " and PTX" if build.ptx else ""
        yield certain_mismatch(f"{gpu_name}; this build has {architectures}{ptx}")
    elif compatibility == "ptx":
        yield possible_mismatch(
            f"{gpu_name} runs this build ({architectures}) only by compiling its PTX, and NCCL "
            "has none"
        )
    elif compatibility == "unknown":
        with_code = f" with {architectures}" if architectures else ""
        yield possible_mismatch(f"no source says whether this build{with_code} runs on {gpu_name}")


def certain_mismatch(why: str) -> Mismatch:
    return Mismatch(why=why, certain=True)


def possible_mismatch(why: str) -> Mismatch:
    return Mismatch(why=why, certain=False)
