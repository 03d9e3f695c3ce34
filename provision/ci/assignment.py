"""Which runners test an environment: the first of runners.yml that fits, or one of each GPU
architecture; else a CPU runner; and why the others do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provision import catalog, sources
from provision.catalog import Build, version_key
from provision.catalog.mismatches import (
    Violation,
    code_mismatches,
    driver_mismatches,
)
from provision.ci.runners import Across, Runner
from provision.core.dataclass import frozen
from provision.core.platforms import Platform
from provision.core.types import Resolution

REHEARSAL_RANKS = 2  # on the CPU: one rank alone reduces nothing
RANKS_MAX = 8  # by default, however many GPUs a runner has
# A runner, and why it does not fit or may not.
Fit = tuple[Runner, Sequence[Violation]]


@frozen
class CiTarget:
    """One environment on one platform."""

    resolution: Resolution
    platform: Platform

    @property
    def name(self) -> str:
        return self.resolution.spec.name


@frozen
class Job:
    """A target and where it runs."""

    target: CiTarget
    runner: Runner | None  # None: one that the CI service offers
    on_gpu: bool
    ranks: int
    # One line each: why no GPU runner takes the job, or what is unknown about the one that does.
    notes: tuple[str, ...]


def assign(
    target: CiTarget, runners: Sequence[Runner], *, gpus: int | None, across: Across = "first"
) -> tuple[Job, ...]:
    """The jobs of a target.

    gpus: how many the smoke test uses; None: as many as the runner has, at most RANKS_MAX. across:
    `first` for one job on the first runner that fits, `gpu` for one job on each GPU architecture.
    A runner that certainly fits is preferred to one that may fit; among equals, the order of
    runners.yml decides.
    """
    considered = []
    certain_fits = []
    possible_fits = []
    for runner in runners:
        if runner.gpu is None:
            continue
        mismatches = misfits(target, runner, gpus=_ranks_on(runner, gpus))
        considered.append((runner, mismatches))
        if not mismatches:
            certain_fits.append((runner, mismatches))
        elif not any(mismatch.rules_out for mismatch in mismatches):
            possible_fits.append((runner, mismatches))
    fits = certain_fits + possible_fits
    if target.resolution.cuda is None or not fits:
        return (_rehearsal(target, runners, considered, gpus),)
    if across == "first":
        fits = fits[:1]
    jobs: dict[str, Job] = {}
    for runner, uncertainties in fits:
        assert runner.gpu is not None
        if runner.gpu.architecture not in jobs:
            jobs[runner.gpu.architecture] = Job(
                target=target,
                runner=runner,
                on_gpu=True,
                ranks=_ranks_on(runner, gpus),
                notes=tuple(f"{runner.name}: {mismatch.fact}" for mismatch in uncertainties),
            )
    return tuple(jobs.values())


def _ranks_on(runner: Runner, gpus: int | None) -> int:
    """The ranks of a smoke test: one for each GPU that it uses."""
    if gpus is not None:
        return gpus
    ranks = min(runner.gpus, RANKS_MAX)
    return ranks if runner.cpus is None else min(ranks, runner.cpus)


def _rehearsal(
    target: CiTarget, runners: Sequence[Runner], considered: Sequence[Fit], gpus: int | None
) -> Job:
    ranks = max(REHEARSAL_RANKS, gpus or 1)
    cpu_runner = None
    for runner in runners:
        if runner.gpu is None and not misfits(target, runner, gpus=ranks):
            cpu_runner = runner
            break
    notes = tuple(_why_on_cpu(target, considered))
    return Job(target=target, runner=cpu_runner, on_gpu=False, ranks=ranks, notes=notes)


def _why_on_cpu(target: CiTarget, considered: Sequence[Fit]) -> Iterator[str]:
    if target.resolution.cuda is None:
        yield "a build without CUDA, which needs only a CPU runner"
        return
    reason = "no GPU runner fits" if considered else "there is no GPU runner"
    yield f"a rehearsal on the CPU, because {reason}"
    for runner, mismatches in considered:
        certain = [mismatch.fact for mismatch in mismatches if mismatch.rules_out]
        yield f"{runner.name}: {'; '.join(certain)}"


def misfits(target: CiTarget, runner: Runner, *, gpus: int) -> tuple[Violation, ...]:
    """Why a runner does not fit a target, or perhaps does not; empty if it fits.

    On a CPU runner `gpus` is the number of ranks.
    """
    if runner.platform != target.platform:
        fact = f"{runner.platform}, and this is for {target.platform}"
        return (Violation(axis="platform", fact=fact),)
    mismatches = [*_gpu_mismatches(target, runner, gpus)]
    glibc = target.resolution.glibc
    if runner.glibc is not None and version_key(runner.glibc) < version_key(glibc):
        fact = f"glibc {runner.glibc}; {glibc} is needed"
        mismatches.append(Violation(axis="glibc", fact=fact))
    if runner.cpus is not None and runner.cpus < gpus:
        cpus = f"{runner.cpus} CPU{'s' if runner.cpus > 1 else ''}"
        fact = f"{cpus}; {gpus} ranks are requested"
        mismatches.append(Violation(axis="platform", fact=fact))
    return tuple(mismatches)


def _gpu_mismatches(target: CiTarget, runner: Runner, gpus: int) -> Iterator[Violation]:
    cuda = target.resolution.cuda
    if cuda is None or runner.gpu is None or runner.driver is None:
        return
    yield from driver_mismatches(cuda, runner.driver, runner.platform)
    yield from code_mismatches(
        _build(target).for_platform(target.platform), runner.gpu, runner.driver
    )
    if runner.gpus < gpus:
        count = f"{runner.gpus} GPU{'s' if runner.gpus > 1 else ''}"
        yield Violation(axis="gpu", fact=f"{count}; {gpus} are requested")


def _build(target: CiTarget) -> Build:
    """The build of a target with a CUDA version, which always has one."""
    source = sources.by_name(target.resolution.source)
    builds = source.builds(catalog.releases()[target.resolution.torch])
    return next(build for build in builds if build.cuda == target.resolution.cuda)
