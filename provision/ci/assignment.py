"""Which runner an environment's job goes to: the first of runners.yml that fits, or the CPU, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision import catalog, sources
from provision.catalog import Build, Gpu, version_key
from provision.ci.runners import Runner
from provision.core.types import Platform, Resolution

REHEARSAL_RANKS = 2  # on the CPU: one rank alone reduces nothing


@dataclass(frozen=True, kw_only=True)
class CiTarget:
    """One environment on one platform."""

    resolution: Resolution
    platform: Platform
    options: tuple[
        str, ...
    ] = ()  # what `provision build NAME` needs beside the name, where there is no spec.yml
    locked: bool = False  # its lock lies in the folder of environments

    @property
    def name(self) -> str:
        return self.resolution.spec.name


@dataclass(frozen=True, kw_only=True)
class RunnerMismatch:
    """A condition that a runner does not meet, or of which nobody says whether it does."""

    why: str
    certain: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """A target and where it runs."""

    target: CiTarget
    runner: Runner | None  # None: what the CI service itself offers
    on_gpu: bool
    ranks: int
    notes: tuple[
        str, ...
    ]  # a line each: why no GPU runner takes it, or what is not known of the one that does


def assign(target: CiTarget, runners: Sequence[Runner], *, gpus: int) -> Job:
    """The job of a target. A runner that is known to fit goes before one of which that is not known; among equals, the order of
    runners.yml decides. gpus: how many the smoke test shall use."""
    considered = [(runner, misfits(target, runner, gpus=gpus)) for runner in runners if runner.gpu]
    possible = [
        (runner, found)
        for runner, found in considered
        if not any(misfit.certain for misfit in found)
    ]
    if target.resolution.cuda is not None and possible:
        runner, unknown = min(
            possible, key=lambda pair: bool(pair[1])
        )  # min keeps the first of equals
        notes = tuple(f"{runner.name}: {misfit.why}" for misfit in unknown)
        return Job(target=target, runner=runner, on_gpu=True, ranks=gpus, notes=notes)
    ranks = max(REHEARSAL_RANKS, gpus)
    fitting = (
        runner for runner in runners if not runner.gpu and not misfits(target, runner, gpus=ranks)
    )
    return Job(
        target=target,
        runner=next(fitting, None),
        on_gpu=False,
        ranks=ranks,
        notes=tuple(_why_not(target, considered)),
    )


def _why_not(
    target: CiTarget, considered: Sequence[tuple[Runner, Sequence[RunnerMismatch]]]
) -> Iterable[str]:
    if target.resolution.cuda is None:
        yield "a build without CUDA: a CPU runner is all that it needs"
        return
    yield (
        "a rehearsal on the CPU, because no GPU runner fits"
        if considered
        else "a rehearsal on the CPU, because there is no GPU runner"
    )
    for runner, found in considered:
        yield f"{runner.name}: {'; '.join(misfit.why for misfit in found if misfit.certain)}"


def misfits(target: CiTarget, runner: Runner, *, gpus: int) -> tuple[RunnerMismatch, ...]:
    """What keeps a target off a runner; nothing if it fits. On a CPU runner `gpus` is the number of ranks."""
    if runner.platform != target.platform:
        return (_no(f"{runner.platform}, and this is for {target.platform}"),)
    return (*_gpu_misfits(target, runner, gpus), *_machine_misfits(target, runner, gpus))


def _gpu_misfits(target: CiTarget, runner: Runner, gpus: int) -> Iterable[RunnerMismatch]:
    cuda = target.resolution.cuda
    if cuda is None or runner.gpu is None or runner.driver is None:
        return
    yield from _driver_misfits(cuda, runner.driver, runner.platform)
    yield from _code_misfits(_build(target), runner.gpu, runner.driver)
    if runner.gpus < gpus:
        yield _no(f"{runner.gpus} GPU{'s' if runner.gpus > 1 else ''}; {gpus} are asked for")


def _driver_misfits(cuda: str, driver: str, platform: Platform) -> Iterable[RunnerMismatch]:
    answer = catalog.runs_on_driver(cuda, driver, platform)
    toolkit = catalog.toolkits().get(cuda)
    if answer == "no" and toolkit:
        yield _no(f"driver {driver}; CUDA {cuda} needs {toolkit.driver_floor}")
    elif answer == "unknown" and toolkit and platform in toolkit.driver_platforms:
        yield _unknown(
            f"driver {driver} may or may not run CUDA {cuda}, which needs {toolkit.driver_floor}"
        )
    elif answer == "unknown":
        yield _unknown(
            f"no source says which driver CUDA {cuda} needs on {platform}; this one is {driver}"
        )


def _code_misfits(build: Build, gpu: Gpu, driver: str) -> Iterable[RunnerMismatch]:
    """Whether the build holds code that the GPU runs."""
    answer = catalog.runs_on_gpu(build, gpu, driver)
    shown = gpu.architecture if gpu.name == gpu.architecture else f"{gpu.name} ({gpu.architecture})"
    have = ", ".join(build.architectures or ())
    if answer == "no" and build.architectures is None:
        yield _no(f"{shown}; CUDA {build.cuda} compiles nothing for it")
    elif answer == "no" and catalog.runs_on_gpu(build, gpu) == "ptx":
        compiler = catalog.toolkits()[build.cuda].toolkit_driver
        yield _no(
            f"{shown}; this build has {have} and PTX, and compiling that needs driver {compiler}"
        )
    elif answer == "no":
        yield _no(f"{shown}; this build has {have}{' and PTX' if build.ptx else ''}")
    elif answer == "ptx":
        yield _unknown(
            f"{shown} runs this build ({have}) only by compiling its PTX, and NCCL holds none"
        )
    elif answer == "unknown":
        yield _unknown(
            f"no source says whether this build{' with ' + have if have else ''} runs on {shown}"
        )


def _machine_misfits(target: CiTarget, runner: Runner, ranks: int) -> Iterable[RunnerMismatch]:
    if runner.glibc is not None and version_key(runner.glibc) < version_key(
        target.resolution.glibc
    ):
        yield _no(f"glibc {runner.glibc}; {target.resolution.glibc} is needed")
    if runner.cpus is not None and runner.cpus < ranks:
        yield _no(f"{runner.cpus} CPU{'s' if runner.cpus > 1 else ''}; {ranks} ranks are asked for")


def _build(target: CiTarget) -> Build:
    """The build that the resolution is of; it has one, since it has a CUDA version."""
    resolution = target.resolution
    builds = sources.by_name(resolution.source).builds(catalog.releases()[resolution.torch])
    return next(build for build in builds if build.cuda == resolution.cuda).on(target.platform)


def _no(why: str) -> RunnerMismatch:
    return RunnerMismatch(why=why, certain=True)


def _unknown(why: str) -> RunnerMismatch:
    return RunnerMismatch(why=why, certain=False)
