"""Selects the candidate of a spec: of the newest release that satisfies everything the newest CUDA,
of that the source that `auto` means.

`auto`, `latest`, ranges and partial versions become exact here, so that later runs give the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from provision import catalog, sources
from provision.core.errors import InvalidSpec
from provision.core.spec_fields import Spec
from provision.core.types import HostGpus
from provision.resolver import constraints, python_versions
from provision.resolver.constraints import MACHINE
from provision.sources.base import Candidate


def select(spec: Spec, machine: HostGpus) -> Candidate | None:
    """The candidate that a spec means, or None if no build satisfies it."""
    described = with_machine(spec, machine)
    return next(iter(_for_machine(described) if spec.cuda == "auto" else _best(described)), None)


def with_each_cuda(spec: Spec, machine: HostGpus) -> Iterator[Spec]:
    """The spec with each CUDA that `auto` may mean for its release of torch, best first."""
    if spec.cuda != "auto":
        yield spec
        return
    for candidate in _for_machine(with_machine(spec, machine)):
        settled = settle(spec, candidate)
        yield replace(spec, cuda=settled.cuda, source=settled.source)


def possible_releases(spec: Spec, machine: HostGpus) -> tuple[str, ...]:
    """The releases of which a build satisfies a spec, newest first."""
    candidates = _best(with_machine(spec, machine))
    return tuple(dict.fromkeys(candidate.release.version for candidate in candidates))


def with_machine(spec: Spec, machine: HostGpus) -> Spec:
    """The spec with the machine that `cuda: auto` is for: the one it describes, else this one."""
    if spec.cuda != "auto" or spec.gpu or spec.driver:
        return spec
    if not machine.gpus:
        reason = machine.why or "this machine's driver and GPUs are unknown"
        raise InvalidSpec(
            f"--cuda auto needs a GPU and its driver: {reason}.",
            advice="Name them, e.g. --gpu H100 --driver 535; or give --cuda X.Y, or --cpu for "
            "machines without GPUs.",
        )
    return for_machine(spec, machine)


def for_machine(spec: Spec, machine: HostGpus) -> Spec:
    """The spec with a machine's driver and those of its GPUs that are in the table."""
    unknown = unknown_gpus(machine)
    gpus = tuple(gpu for gpu in machine.gpus if gpu not in unknown)
    return replace(spec, gpu=gpus, driver=machine.driver)


def unknown_gpus(machine: HostGpus) -> tuple[str, ...]:
    """This machine's GPUs that are not in the table: they restrict nothing."""
    unknown = []
    for gpu in machine.gpus:
        try:
            catalog.find_gpu(gpu)
        except InvalidSpec:
            unknown.append(gpu)
    return tuple(unknown)


def settle(spec: Spec, candidate: Candidate) -> Spec:
    """The spec with what it leaves open made exact, so that it means this candidate on every
    machine."""
    exact = replace(
        spec,
        torch=_torch_or_release(spec, candidate),
        cuda=candidate.cuda,
        python=python_versions.chosen(candidate, spec),
    )
    if next(_best(exact), None) is not candidate:
        # `auto` went by a machine that the spec does not describe.
        exact = replace(exact, source=candidate.source.name)
    return replace(exact, name=spec.name or _name(spec, exact, candidate))


def _torch_or_release(spec: Spec, candidate: Candidate) -> str:
    # spec.yml keeps a number, which names the environment.
    return spec.torch if catalog.EXACT.fullmatch(spec.torch) else candidate.release.version


def _name(spec: Spec, exact: Spec, candidate: Candidate) -> str:
    """A name made from the request.

    The source is part of it unless the release and the CUDA alone lead to it, and so is a platform
    other than the usual one.
    """
    torch = _torch_or_release(spec, candidate)
    if catalog.covers_minor(spec.torch, candidate.release.minor):
        torch = candidate.release.minor
    python = (exact.python or "").replace(".", "")
    parts = [f"torch{torch}", f"cuda{candidate.cuda}" if candidate.cuda else "cpu", f"py{python}"]
    plain = replace(
        exact,
        source=sources.AUTO,
        torch=torch,
        gpu=(),
        driver=None,
        glibc=None,
    )
    default = next(_best(plain), None)
    if default is None or default.source is not candidate.source:
        parts.append(candidate.source.name)
    if "linux-64" not in spec.platforms:
        parts.append("aarch64")
    return "-".join(parts)


def _best(spec: Spec) -> Iterator[Candidate]:
    """The candidates that a spec may mean, newest release and CUDA first, one for each CUDA.

    That one is from the source that `auto` means: not the usual one only if the spec describes a
    machine on which the usual build would not run directly.
    """
    for version in reversed(constraints.releases_of(spec.torch)):
        matching = [
            candidate
            for candidate in sources.candidates_of(version)
            if constraints.fits(candidate, spec, *constraints.CHANGEABLE)
        ]
        for _, same_cuda in itertools.groupby(matching, key=lambda candidate: candidate.cuda):
            by_preference = sorted(
                same_cuda,
                key=lambda candidate: candidate.source.preference(candidate, spec.platforms)[0],
            )
            best = _best_on_machine(by_preference, spec)
            if best is not None:
                yield best


def _best_on_machine(by_preference: Sequence[Candidate], spec: Spec) -> Candidate | None:
    """The first candidate without violations on the machine, else the first that may run there."""
    possible: Candidate | None = None
    for candidate in by_preference:
        violations = list(constraints.violations(candidate, spec, MACHINE))
        if not violations:
            return candidate
        # A build that is unlikely to run is taken only if `auto` prefers it anyway.
        is_preferred = candidate is by_preference[0]
        is_ruled_out = any(
            violation.rules_out or (violation.unlikely and not is_preferred)
            for violation in violations
        )
        if possible is None and not is_ruled_out:
            possible = candidate
    return possible


def _for_machine(described: Spec) -> Sequence[Candidate]:
    """The candidates of the newest release with a CUDA that the machine may run: first those that it
    is known to run, each newest CUDA first."""
    releases = itertools.groupby(_best(described), key=lambda candidate: candidate.release.version)
    _, newest = next(releases, ("", ()))
    return sorted(
        newest,
        key=lambda candidate: any(constraints.violations(candidate, described, MACHINE)),
    )
