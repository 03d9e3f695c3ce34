"""Spec -> Resolution: the candidate that is meant, what goes with it, and what is known to go wrong with it."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence

from provision import catalog
from provision.catalog import Rule
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.types import Choice, Machine, Pin, Resolution, Spec
from provision.resolver import conflicts, constraints
from provision.resolver.candidate import Candidate
from provision.resolver.pins import channels, local_version, pins
from provision.resolver.rationale import choices, driver_floor, glibc, nccl
from provision.resolver.refusal import no_such_build
from provision.resolver.select import choose, described, settle

KERNEL_LINUX = "5.10"  # from conda-lock's default-virtual-packages.yaml


def resolve(spec: Spec, machine: Machine | None = None) -> Resolution:
    """Match a spec with the facts. Raises NoSuchBuild with what exists instead, InvalidSpec for extras that cannot be.

    machine: the one that `cuda: auto` is for, where the spec names none. The answer's spec is settled: resolved again, without
    a machine, it gives the same pins.
    """
    machine = machine or Machine()
    candidate = choose(spec, machine)
    if candidate is None:
        typed = (spec.gpu, spec.driver)
        raise no_such_build(
            described(spec, machine),
            lambda offered: leads_to(dataclasses.replace(offered, gpu=typed[0], driver=typed[1])),
        )
    return _resolution(spec, machine, candidate)


def leads_to(spec: Spec) -> Candidate | None:
    """The candidate that a spec resolves to, or None if it is refused. Its CUDA is given."""
    candidate = choose(spec, Machine())
    try:
        return candidate if candidate and _resolution(spec, Machine(), candidate) else None
    except (InvalidSpec, NoSuchBuild):
        return None


def _resolution(spec: Spec, machine: Machine, candidate: Candidate) -> Resolution:
    settled = settle(spec, candidate)
    there = on_its_machine(spec, settled, machine)
    ordered = channels(settled, candidate)
    rules = applying(there, candidate, ordered)
    made = tuple(pins(settled, candidate, rules))
    _refuse(settled, candidate, rules, made)
    return Resolution(
        spec=settled,
        torch=candidate.release.version,
        local_version=local_version(candidate),
        source=candidate.source,
        cuda=candidate.cuda,
        python=settled.python or "",
        nccl=nccl(settled, candidate),
        cudnn=candidate.build.cudnn if candidate.build else None,
        architectures=(candidate.build.architectures or ()) if candidate.build else (),
        glibc=glibc(settled, candidate),
        driver_floor=driver_floor(settled, candidate),
        needs_local_build=candidate.needs_torch_index(settled.platforms),
        channels=ordered,
        pins=made,
        virtual_packages=_virtual_packages(candidate, glibc(settled, candidate)),
        choices=tuple(choices(spec, described(spec, machine), settled, candidate, ordered)),
        platforms=settled.platforms,
        warnings=_warnings(there, candidate, rules),
    )


def on_its_machine(spec: Spec, settled: Spec, machine: Machine) -> Spec:
    """The settled spec with the machine that `auto` was for, so that what is known of the two is said."""
    there = described(spec, machine)
    return dataclasses.replace(settled, gpu=there.gpu, driver=there.driver)


def applying(spec: Spec, candidate: Candidate, ordered: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that hold for a settled spec."""
    gpus = [catalog.find_gpu(name) for name in spec.gpu]
    return catalog.matching_rules(
        candidate.release,
        candidate.build,
        candidate.source,
        python=spec.python,
        nccl=nccl(spec, candidate),
        platforms=spec.platforms,
        packages=conflicts.packages(spec),
        channels=spec.channels or ordered,
        through_ptx=candidate.build is not None
        and any(catalog.runs_on_gpu(candidate.build, gpu, spec.driver) == "ptx" for gpu in gpus),
    )


def _refuse(spec: Spec, candidate: Candidate, rules: Sequence[Rule], made: Sequence[Pin]) -> None:
    """Everything that is known to be wrong with a request, at once."""
    refused = [rule for rule in rules if rule.consequence == "refuse"]
    builds = [
        f"{candidate}: {rule.reason} ({rule.source}). {rule.advice}".strip()
        for rule in refused
        if rule.package is None
    ]
    if builds:
        raise NoSuchBuild(" ".join(builds))
    mistakes = [
        f"{_named(spec, rule)}: {rule.reason} ({rule.source}). {rule.advice}".strip()
        for rule in refused
        if rule.package
    ]
    mistakes += conflicts.conflicts(spec, candidate, made)
    if mistakes:
        raise InvalidSpec(" ".join(mistakes))


def _named(spec: Spec, rule: Rule) -> str:
    """The packages of a request that a rule is about."""
    return ", ".join(
        f"`{name}`" for name in fnmatch.filter(conflicts.packages(spec), rule.package or "*")
    )


def _warnings(spec: Spec, candidate: Candidate, rules: Sequence[Rule]) -> tuple[Choice, ...]:
    """What no source says about this combination, and the pitfalls that no pin avoids."""
    unknown = [
        Choice(what=found.axis, value="", reason=found.fact, source=found.source)
        for found in constraints.violations(candidate, spec)
        if not found.rules_out
    ]
    told = [
        Choice(what=rule.id, value=rule.advice, reason=rule.reason, source=rule.source)
        for rule in rules
        if rule.consequence == "warn"
    ]
    return (*unknown, *told)


def _virtual_packages(candidate: Candidate, glibc: str) -> tuple[tuple[str, str], ...]:
    machine = [("__glibc", glibc), ("__linux", KERNEL_LINUX), ("__unix", "0")]
    return tuple(sorted([*machine, *([("__cuda", candidate.cuda)] if candidate.cuda else [])]))
