"""Which runner gets a job: the first of runners.yml that fits the environment, else a CPU runner,
and why the other runners do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provision import catalog, sources
from provision.catalog import Build, Gpu, version_key
from provision.ci.runners import Runner
from provision.core.platforms import Platform
from provision.core.types import Resolution

REHEARSAL_RANKS = 2  # on the CPU: one rank alone reduces nothing


@dataclass(frozen=True, kw_only=True)
class CiTarget:
    """One environment on one platform."""

    resolution: Resolution
    platform: Platform
    # The options that `provision build NAME` needs if there is no spec.yml.
    options: tuple[str, ...] = ()
    locked: bool = False  # its lock is in the folder of environments

    @property
    def name(self) -> str:
        return self.resolution.spec.name


@dataclass(frozen=True, kw_only=True)
class RunnerMismatch:
    """A condition that a runner does not meet, or (certain=False) may not meet: no source says."""

    why: str
    certain: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """A target and where it runs."""

    target: CiTarget
    runner: Runner | None  # None: one that the CI service offers
    on_gpu: bool
    ranks: int
    # One line each: why no GPU runner takes the job, or what is unknown about the one that does.
    notes: tuple[str, ...]


def assign(target: CiTarget, runners: Sequence[Runner], *, gpus: int) -> Job:
    """The job of a target. gpus: how many the smoke test uses.

    A runner that certainly fits is preferred to one that may fit; among equals, the order of
    runners.yml decides.
    """
    considered = []
    certain_fits = []
    possible_fits = []
    for runner in runners:
        if runner.gpu is None:
            continue
        mismatches = misfits(target, runner, gpus=gpus)
        considered.append((runner, mismatches))
        if not mismatches:
            certain_fits.append((runner, mismatches))
        elif not any(mismatch.certain for mismatch in mismatches):
            possible_fits.append((runner, mismatches))
    fits = certain_fits + possible_fits
    if target.resolution.cuda is not None and fits:
        runner, uncertainties = fits[0]
        notes = tuple(f"{runner.name}: {mismatch.why}" for mismatch in uncertainties)
        return Job(target=target, runner=runner, on_gpu=True, ranks=gpus, notes=notes)
    ranks = max(REHEARSAL_RANKS, gpus)
    cpu_runner = None
    for runner in runners:
        if runner.gpu is None and not misfits(target, runner, gpus=ranks):
            cpu_runner = runner
            break
    notes = tuple(_why_on_cpu(target, considered))
    return Job(target=target, runner=cpu_runner, on_gpu=False, ranks=ranks, notes=notes)


def _why_on_cpu(
    target: CiTarget, considered: Sequence[tuple[Runner, Sequence[RunnerMismatch]]]
) -> Iterator[str]:
    if target.resolution.cuda is None:
        yield "a build without CUDA, which needs only a CPU runner"
        return
    reason = "no GPU runner fits" if considered else "there is no GPU runner"
    yield f"a rehearsal on the CPU, because {reason}"
    for runner, mismatches in considered:
        certain = [mismatch.why for mismatch in mismatches if mismatch.certain]
        yield f"{runner.name}: {'; '.join(certain)}"


def misfits(target: CiTarget, runner: Runner, *, gpus: int) -> tuple[RunnerMismatch, ...]:
    """Why a runner does not fit a target, or perhaps does not; empty if it fits.

    On a CPU runner `gpus` is the number of ranks.
    """
    if runner.platform != target.platform:
        return (_certain(f"{runner.platform}, and this is for {target.platform}"),)
    mismatches = [*_gpu_mismatches(target, runner, gpus)]
    glibc = target.resolution.glibc
    if runner.glibc is not None and version_key(runner.glibc) < version_key(glibc):
        mismatches.append(_certain(f"glibc {runner.glibc}; {glibc} is needed"))
    if runner.cpus is not None and runner.cpus < gpus:
        cpus = f"{runner.cpus} CPU{'s' if runner.cpus > 1 else ''}"
        mismatches.append(_certain(f"{cpus}; {gpus} ranks are requested"))
    return tuple(mismatches)


def _gpu_mismatches(target: CiTarget, runner: Runner, gpus: int) -> Iterator[RunnerMismatch]:
    cuda = target.resolution.cuda
    if cuda is None or runner.gpu is None or runner.driver is None:
        return
    yield from _driver_mismatches(cuda, runner.driver, runner.platform)
    # A resolution with a CUDA version always has a build.
    source = sources.by_name(target.resolution.source)
    builds = source.builds(catalog.releases()[target.resolution.torch])
    build = next(build for build in builds if build.cuda == cuda)
    yield from _code_mismatches(build.for_platform(target.platform), runner.gpu, runner.driver)
    if runner.gpus < gpus:
        count = f"{runner.gpus} GPU{'s' if runner.gpus > 1 else ''}"
        yield _certain(f"{count}; {gpus} are requested")


def _driver_mismatches(cuda: str, driver: str, platform: Platform) -> Iterator[RunnerMismatch]:
    answer = catalog.runs_on_driver(cuda, driver, platform)
    toolkit = catalog.toolkits().get(cuda)
    if answer == "no" and toolkit:
        yield _certain(f"driver {driver}; CUDA {cuda} needs {toolkit.driver_floor}")
    elif answer == "unknown" and toolkit and platform in toolkit.driver_platforms:
        yield _possible(
            f"driver {driver} may or may not run CUDA {cuda}, which needs {toolkit.driver_floor}"
        )
    elif answer == "unknown":
        yield _possible(
            f"no source says which driver CUDA {cuda} needs on {platform}; this one is {driver}"
        )


def _code_mismatches(build: Build, gpu: Gpu, driver: str) -> Iterator[RunnerMismatch]:
    """Whether the build has code that the GPU runs."""
    answer = catalog.runs_on_gpu(build, gpu, driver)
    gpu_name = gpu.name
    if gpu.name != gpu.architecture:
        gpu_name = f"{gpu.name} ({gpu.architecture})"
    architectures = ", ".join(build.architectures or ())
    if answer == "no" and build.architectures is None:
        yield _certain(f"{gpu_name}; CUDA {build.cuda} compiles nothing for it")
    elif answer == "no" and catalog.runs_on_gpu(build, gpu) == "ptx":
        compiler = catalog.toolkits()[build.cuda].toolkit_driver
        yield _certain(
            f"{gpu_name}; this build has {architectures} and PTX, and compiling that needs driver "
            f"{compiler}"
        )
    elif answer == "no":
        ptx = " and PTX" if build.ptx else ""
        yield _certain(f"{gpu_name}; this build has {architectures}{ptx}")
    elif answer == "ptx":
        yield _possible(
            f"{gpu_name} runs this build ({architectures}) only by compiling its PTX, and NCCL "
            "has none"
        )
    elif answer == "unknown":
        with_code = f" with {architectures}" if architectures else ""
        yield _possible(f"no source says whether this build{with_code} runs on {gpu_name}")


def _certain(why: str) -> RunnerMismatch:
    return RunnerMismatch(why=why, certain=True)


def _possible(why: str) -> RunnerMismatch:
    return RunnerMismatch(why=why, certain=False)
