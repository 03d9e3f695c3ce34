"""Spec -> Resolution: the selected candidate, its pins and channels, and its known problems."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import replace

from provision import catalog
from provision.catalog import CompatibilityRule
from provision.catalog.mismatches import Violation
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.spec_fields import Spec
from provision.core.types import Choice, HostGpus, Pin, Resolution
from provision.resolver import constraints, cuda_packages
from provision.resolver.pins import added_packages, channels, conflicts, pins
from provision.resolver.rationale import choices, driver_floor, glibc, nccl
from provision.resolver.refusal import no_such_build
from provision.resolver.select import for_machine, select, settle, unknown_gpus, with_machine
from provision.resolver.suggest import nearest
from provision.sources.base import Candidate

# The id of the warning about a release of which only a package index says something.
UNKNOWN_RELEASE = "unknown-release"
SOURCES_ADVICE = "(-v shows the sources.)"
KERNEL_LINUX = "5.10"  # from conda-lock's default-virtual-packages.yaml


# A resolution, and the rules that hold for it.
Decision = tuple[Resolution, tuple[CompatibilityRule, ...]]


def resolve(spec: Spec, machine: HostGpus | None = None) -> Resolution:
    """Match a spec with the facts.

    Raises NoSuchBuild with what exists instead, InvalidSpec for added packages that conflict.

    Pure: no network, no clock. machine: the one that `cuda: auto` is for, if the spec describes
    none. The resolved spec is settled: resolved again, without a machine, it gives the same pins.
    """
    return decide(spec, machine or HostGpus())[0]


def decide(spec: Spec, machine: HostGpus) -> Decision:
    """`resolve`, with the rules that hold."""
    candidate = select(spec, machine)
    if candidate is None:

        def leads_to_as_typed(offered: Spec) -> Candidate | None:
            return leads_to(replace(offered, gpu=spec.gpu, driver=spec.driver))

        raise no_such_build(with_machine(spec, machine), leads_to_as_typed)
    return _decision(spec, machine, candidate)


def leads_to(spec: Spec) -> Candidate | None:
    """The candidate that a spec resolves to, or None if it is refused. Its CUDA is not `auto`."""
    candidate = select(spec, HostGpus())
    if candidate is None:
        return None
    try:
        _decision(spec, HostGpus(), candidate)
    except (InvalidSpec, NoSuchBuild):
        return None
    return candidate


@catalog.cached
def warning_ids() -> tuple[str, ...]:
    """The ids of all warnings that a request can accept."""
    ids = [rule.id for rule in catalog.rules() if rule.consequence == "warn"]
    ids += [cuda_packages.OTHER_CUDA, UNKNOWN_RELEASE]
    return tuple(dict.fromkeys(ids))


def build_known_to_run(spec: Spec) -> str | None:
    """The options of the nearest build that is known to run on the GPUs and driver of a spec."""

    def leads_to_known(offered: Spec) -> Candidate | None:
        candidate = leads_to(offered)
        on_machine = replace(offered, gpu=spec.gpu, driver=spec.driver)
        if candidate and any(constraints.violations(candidate, on_machine, constraints.MACHINE)):
            return None
        return candidate

    neighbors = nearest(spec, 1, leads_to_known)
    return neighbors[0].options if neighbors else None


def _decision(spec: Spec, machine: HostGpus, candidate: Candidate) -> Decision:
    # This machine may have decided what `cuda: auto` means already.
    is_for_this_machine = machine.gpus and not (spec.gpu or spec.driver)
    described = for_machine(spec, machine) if is_for_this_machine else spec
    settled = settle(spec, candidate)
    # Known problems on the machine that `auto` was for are reported too.
    on_machine = replace(settled, gpu=described.gpu, driver=described.driver)
    ordered_channels = channels(settled, candidate)
    violations = list(constraints.violations(candidate, on_machine))
    rules = catalog.matching_rules(
        candidate.release,
        candidate.build,
        candidate.source.name,
        python=settled.python,
        nccl=nccl(settled, candidate),
        platforms=settled.platforms,
        packages=added_packages(settled),
        channels=settled.channels or ordered_channels,
        through_ptx=any(violation.through_ptx for violation in violations),
    )
    resolved_pins = tuple(pins(settled, candidate, rules))
    _refuse_mistakes(settled, candidate, rules, resolved_pins)
    build = candidate.build_for(settled.platforms[0])
    solver_glibc = glibc(settled, candidate)
    virtual_packages = {"__glibc": solver_glibc, "__linux": KERNEL_LINUX, "__unix": "0"}
    if candidate.cuda:
        virtual_packages["__cuda"] = candidate.cuda
    resolution = Resolution(
        spec=settled,
        torch=candidate.release.version,
        local_version=candidate.source.local_version(candidate),
        source=candidate.source.name,
        cuda=candidate.cuda,
        python=settled.python or "",
        nccl=nccl(settled, candidate),
        cudnn=build.cudnn if build else None,
        architectures=(build.architectures or ()) if build else (),
        glibc=solver_glibc,
        driver_floor=driver_floor(settled, candidate),
        needs_local_build=candidate.needs_torch_index(settled.platforms),
        channels=ordered_channels,
        pins=resolved_pins,
        virtual_packages=tuple(sorted(virtual_packages.items())),
        choices=tuple(choices(spec, described, settled, candidate, ordered_channels)),
        platforms=settled.platforms,
        warnings=(
            *_unknown_release(candidate),
            *_warnings(violations, rules),
            *cuda_packages.warnings(settled, candidate),
            *_machine_notes(spec, described, machine),
        ),
    )
    return resolution, rules


def _refuse_mistakes(
    spec: Spec,
    candidate: Candidate,
    rules: Sequence[CompatibilityRule],
    resolved_pins: Sequence[Pin],
) -> None:
    """Report all known mistakes of a request in one error, their sources with -v only."""
    about_builds, about_packages, sources = [], [], []
    for rule in rules:
        if rule.consequence != "refuse":
            continue
        reason = f"{rule.reason}. {rule.advice}"
        sources.append(f"{rule.id}: {rule.source}")
        if rule.package is None:
            about_builds.append(f"{candidate}: {reason}".strip())
        else:
            names = fnmatch.filter(added_packages(spec), rule.package)
            listed = ", ".join(f"`{name}`" for name in names)
            about_packages.append(f"{listed}: {reason}".strip())
    if about_builds:
        raise NoSuchBuild(" ".join(about_builds), advice=SOURCES_ADVICE, details="\n".join(sources))
    mistakes = about_packages
    for sentence, source in conflicts(spec, candidate, resolved_pins):
        mistakes.append(sentence)
        if source:
            sources.append(source)
    if mistakes:
        raise InvalidSpec(
            "\n".join(mistakes),
            advice=SOURCES_ADVICE if sources else "",
            details="\n".join(sources),
        )


def _unknown_release(candidate: Candidate) -> Iterator[Choice]:
    """What nobody has said of a release that only a package index knows."""
    if not candidate.release.from_index:
        return
    unknown = []
    if candidate.build and candidate.build.architectures is None:
        unknown.append("for which GPUs it holds code")
    if candidate.build and candidate.toolkit is None:
        unknown.append(f"which driver CUDA {candidate.cuda} needs")
    unknown.append("which problems it has")
    yield Choice(
        what=UNKNOWN_RELEASE,
        value="`provision facts update` may know it by now; a smoke test on a GPU shows whether it "
        "runs.",
        reason=f"the facts of {catalog.edition().date} do not have torch {candidate.release.version}: "
        f"its versions are those of the package index, and no source says {', '.join(unknown)}",
        source=candidate.origin,
    )


def _warnings(
    violations: Sequence[Violation], rules: Sequence[CompatibilityRule]
) -> Iterator[Choice]:
    """What is not known about this combination, and the pitfalls that no pin avoids."""
    for violation in violations:
        if not violation.rules_out:
            yield Choice(
                what=violation.axis, value="", reason=violation.fact, source=violation.source
            )
    for rule in rules:
        if rule.consequence == "warn":
            yield Choice(what=rule.id, value=rule.advice, reason=rule.reason, source=rule.source)


def _machine_notes(spec: Spec, described: Spec, machine: HostGpus) -> Iterator[Choice]:
    """What did not count when `auto` was decided for this machine."""
    if described is spec:
        return
    for gpu in unknown_gpus(machine):
        reason = f"this machine has a GPU that is not in the table ({gpu}); the CUDA was chosen "
        reason += "without it"
        yield Choice(what="gpu", value="", reason=reason, source="nvidia-smi")
    if machine.lost:
        reason = f"nvidia-smi names no product for {machine.lost} of this machine's GPUs: lost"
        yield Choice(what="gpu", value="", reason=reason, source="nvidia-smi")
