"""Which candidate a spec means: the newest release that satisfies everything, of that the newest CUDA, of that the source that `auto`
means. What `auto`, `latest`, ranges and half versions come to is settled here, so that nothing moves later."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

from provision import catalog
from provision.core.errors import InvalidSpec
from provision.core.types import Machine, Spec
from provision.resolver import constraints, python_versions
from provision.resolver.candidate import Candidate, candidates_of

# A release or a minor release by number: a choice of its own, which spec.yml keeps and which names the environment.
NUMBER = re.compile(r"\d+\.\d+(\.\d+)?")


def choose(spec: Spec, machine: Machine) -> Candidate | None:
    """The candidate that a spec means, or None where there is none."""
    there = described(spec, machine)
    return _newest_for(there) if spec.cuda == "auto" else next(_best(there), None)


def described(spec: Spec, machine: Machine) -> Spec:
    """The spec with the machine that `auto` is for: the one it describes, else the one that was asked."""
    if spec.cuda != "auto" or spec.gpu or spec.driver:
        return spec
    if not machine.gpus:
        raise InvalidSpec(
            f"--cuda auto needs a GPU and its driver: {machine.why or 'nothing is known of this machine'}.",
            advice="Name them, e.g. --gpu H100 --driver 535; or give --cuda X.Y, or --cpu for machines without GPUs.",
        )
    return dataclasses.replace(spec, gpu=machine.gpus, driver=machine.driver)


def settle(spec: Spec, candidate: Candidate) -> Spec:
    """The spec with what was left open made exact, so that it means this candidate on every machine."""
    torch = spec.torch if NUMBER.fullmatch(spec.torch) else candidate.release.version
    exact = dataclasses.replace(
        spec, torch=torch, cuda=candidate.cuda, python=python_versions.chosen(candidate, spec)
    )
    if (
        next(_best(exact), None) is not candidate
    ):  # auto went by a machine that the spec does not name
        exact = dataclasses.replace(exact, source=candidate.source)
    return dataclasses.replace(exact, name=spec.name or _name(spec, exact, candidate))


def _name(spec: Spec, exact: Spec, candidate: Candidate) -> str:
    """Semantic, from what was asked for; a source other than the one that the release and CUDA alone lead to is part of it, and
    so is a machine that is not the usual one."""
    torch = spec.torch if NUMBER.fullmatch(spec.torch) else candidate.release.version
    if catalog.covers_minor(spec.torch, candidate.release.minor):
        torch = candidate.release.minor
    parts = [
        f"torch{torch}",
        f"cuda{candidate.cuda}" if candidate.cuda else "cpu",
        f"py{(exact.python or '').replace('.', '')}",
    ]
    plain = dataclasses.replace(
        exact, source="auto", torch=torch, nccl=None, cudnn=None, gpu=(), driver=None, glibc=None
    )
    usual = next(_best(plain), None)
    parts += [] if usual and usual.source == candidate.source else [candidate.source]
    return "-".join(parts + ([] if "linux-64" in spec.platforms else ["aarch64"]))


def _best(spec: Spec) -> Iterator[Candidate]:
    """The cells that a spec may mean, newest release and CUDA first; of each the one from the source that `auto` means, which is
    another one only where a machine is described on which that would not run as it is."""
    meant = (
        candidate
        for version in reversed(constraints.releases_of(spec.torch))
        for candidate in candidates_of(version)
    )
    as_asked = (
        candidate
        for candidate in meant
        if all(constraints.passes(candidate, spec, axis) for axis in constraints.CHANGEABLE)
    )
    for _, alike in itertools.groupby(
        as_asked, key=lambda candidate: (candidate.release.version, candidate.cuda)
    ):
        rivals = sorted(alike, key=lambda candidate: candidate.preference(spec.platforms)[0])
        if found := _runs_best(rivals, spec):
            yield found


def _runs_best(rivals: Sequence[Candidate], spec: Spec) -> Candidate | None:
    """Of builds alike, in the order of `auto`: the first against which nothing stands on the machine, else the first that may do."""
    against = {candidate: list(constraints.on_machine(candidate, spec)) for candidate in rivals}
    plainly = (candidate for candidate, found in against.items() if not found)
    perhaps = (
        candidate
        for candidate, found in against.items()
        if not any(one.rules_out or (one.unlikely and candidate is not rivals[0]) for one in found)
    )
    return next(itertools.chain(plainly, perhaps), None)


def _newest_for(there: Spec) -> Candidate | None:
    """The newest release with a CUDA that the machine runs, and of that the newest CUDA of which this is known."""
    may_be: Candidate | None = None
    for candidate in _best(there):
        if may_be is not None and candidate.release is not may_be.release:
            break
        if not any(constraints.on_machine(candidate, there)):
            return candidate
        may_be = may_be or candidate
    return may_be
