"""Every decision about a candidate in words, with reason and source: for `explain`, the passport and comments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from provision import catalog
from provision.core.types import Choice, Spec
from provision.resolver import constraints, python_versions
from provision.resolver.candidate import SPOKEN, Candidate, candidates_of
from provision.resolver.constraints import NO_SOURCE
from provision.resolver.pins import COMPANION, COMPANION_LINE, PYTHON_REASON, RDMA, RDMA_SOURCE

NOT_KNOWN = "not known"
ASKED = "asked for"
# conda-lock's own default for Linux (its default-virtual-packages.yaml): what a 2018 distribution has.
DEFAULT_GLIBC = "2.28"
GLIBC_SOURCE = "conda-lock's default-virtual-packages.yaml"


def choices(
    asked: Spec, there: Spec, spec: Spec, candidate: Candidate, channels: tuple[str, ...]
) -> Iterator[Choice]:
    """asked: what was asked for; there: with the machine that it is for; spec: with what was left open made exact."""
    yield _torch(asked, candidate)
    why = why_source(dataclasses.replace(there, cuda=candidate.cuda), candidate)
    yield Choice(what="source", value=candidate.source, reason=why, source=candidate.origin)
    yield Choice(
        what="python",
        value=spec.python or "",
        reason=PYTHON_REASON,
        source=python_versions.source_of(candidate, spec.platforms[0]) or NO_SOURCE,
    )
    if candidate.build:
        yield _cuda(there, candidate)
        yield _nccl(spec, candidate)
        yield _driver(spec, candidate)
        yield _cudnn(spec, candidate)
        yield _triton(candidate)
        yield _architectures(candidate)
    yield from _companions(spec, candidate)
    yield _glibc(spec, candidate)
    yield _platforms(asked, candidate)
    yield _channels(asked, candidate, channels)
    if spec.infiniband:
        yield Choice(what="infiniband", value="rdma-core", reason=RDMA, source=RDMA_SOURCE)
    if not spec.jupyter:
        yield Choice(
            what="jupyter",
            value="left out",
            reason="asked for with --no-jupyter",
            source="spec.yml",
        )
    if not spec.fast_checkpoints:
        yield Choice(
            what="fast_checkpoints",
            value="left out",
            reason="asked for with --no-fast-checkpoints",
            source="spec.yml",
        )


def glibc(spec: Spec, candidate: Candidate) -> str:
    """What the solvers may assume of the machine."""
    needed = candidate.glibc(spec.platforms) or DEFAULT_GLIBC
    return spec.glibc or max(DEFAULT_GLIBC, needed, key=catalog.version_key)


def driver_floor(spec: Spec, candidate: Candidate) -> str | None:
    """The oldest driver that runs the build, where a source says for one of the platforms."""
    toolkit = catalog.toolkits().get(candidate.build.cuda) if candidate.build else None
    return (
        toolkit.driver_floor
        if toolkit and any(one in toolkit.driver_platforms for one in spec.platforms)
        else None
    )


def nccl(spec: Spec, candidate: Candidate) -> str | None:
    """The NCCL that is known before anything is solved; on conda-forge what was asked for, if anything was."""
    if candidate.build is None:
        return None
    return candidate.build.nccl or (spec.nccl if candidate.source == "conda-forge" else None)


def _torch(asked: Spec, candidate: Candidate) -> Choice:
    version = candidate.release.version
    if asked.torch == version:
        reason = ASKED
    elif asked.torch == "latest":
        reason = "newest release in the table"
    else:
        reason = f"newest {asked.torch} release in the table" + (
            "" if constraints.releases_of(asked.torch)[-1] == version else " that fits the rest"
        )
    return Choice(
        what="torch",
        value=version,
        reason=reason,
        source=candidate.release.sources[candidate.source],
    )


def why_source(asked: Spec, candidate: Candidate) -> str:
    """Why a build comes from where it does. asked: with the machine that it is for."""
    if asked.source != "auto":
        return "asked for with --source"
    alike = [
        one
        for one in candidates_of(candidate.release.version)
        if one.cuda == candidate.cuda and constraints.passes(one, asked, "platform")
    ]
    usual = min(alike, key=lambda one: one.preference(asked.platforms)[0])
    if usual is candidate:
        return candidate.preference(asked.platforms)[1]
    against = next(constraints.violations(usual, asked), None)
    return f"usually it is {SPOKEN[usual.source]}" + (f", but {against.fact}" if against else "")


def _cuda(asked: Spec, candidate: Candidate) -> Choice:
    assert candidate.build is not None
    if asked.cuda == "auto":
        machine = [*asked.gpu, *([f"driver {asked.driver}"] if asked.driver else [])]
        reason = f"newest of this release that {' and '.join(machine)} can run"
    else:
        reason = ASKED if asked.cuda == candidate.cuda else f"newest {asked.cuda}.x of this release"
    return Choice(
        what="cuda", value=candidate.build.cuda, reason=reason, source=candidate.build.source
    )


def _nccl(spec: Spec, candidate: Candidate) -> Choice:
    assert candidate.build is not None
    if candidate.source == "conda-forge":
        floor = candidate.floor("nccl", spec.platforms)[0]
        reason = "a shared package on conda-forge, chosen by the solver" + (
            f" from {floor} on" if floor else ""
        )
        value = spec.nccl or "chosen by the solver"
    elif candidate.build.nccl_is_package:
        reason, value = (
            "a package of its own: the exact version that torch's metadata pins",
            candidate.build.nccl or NOT_KNOWN,
        )
    else:
        reason, value = (
            "linked statically into the build; cannot be chosen",
            candidate.build.nccl or NOT_KNOWN,
        )
    return Choice(
        what="nccl", value=value, reason=reason, source=candidate.build.nccl_source or NO_SOURCE
    )


def _cudnn(spec: Spec, candidate: Candidate) -> Choice:
    assert candidate.build is not None
    floor = candidate.floor("cudnn", spec.platforms)[0]
    if candidate.source == "conda-forge":
        reason = "a shared package on conda-forge, chosen by the solver" + (
            f" from {floor} on" if floor else ""
        )
        value = spec.cudnn or "chosen by the solver"
    else:
        reason, value = "the one that the build was made with", candidate.build.cudnn or NOT_KNOWN
    return Choice(
        what="cudnn", value=value, reason=reason, source=candidate.build.cudnn_source or NO_SOURCE
    )


def _triton(candidate: Candidate) -> Choice:
    assert candidate.build is not None
    value = (candidate.build.triton or NOT_KNOWN).removeprefix("==")
    return Choice(
        what="triton",
        value=value,
        reason="what torch requires",
        source=candidate.build.triton_source or NO_SOURCE,
    )


def _driver(spec: Spec, candidate: Candidate) -> Choice:
    assert candidate.build is not None
    toolkit = catalog.toolkits().get(candidate.build.cuda)
    floor = driver_floor(spec, candidate)
    reason = "oldest driver that runs this CUDA"
    if toolkit and floor is None:
        reason += f": {toolkit.driver_floor} on {', '.join(toolkit.driver_platforms)}, and no source says for {', '.join(spec.platforms)}"
    source = toolkit.driver_source if toolkit else NO_SOURCE
    return Choice(
        what="driver", value=f">={floor}" if floor else NOT_KNOWN, reason=reason, source=source
    )


def _architectures(candidate: Candidate) -> Choice:
    assert candidate.build is not None
    build = candidate.build
    if build.architectures is None:
        toolkit = catalog.toolkits().get(build.cuda)
        reason = (
            f"no source says; CUDA {build.cuda} itself compiles for {toolkit.capability_min} and newer"
            if toolkit
            else "no source says"
        )
        return Choice(
            what="gpu",
            value=NOT_KNOWN,
            reason=reason,
            source=toolkit.capability_source if toolkit else NO_SOURCE,
        )
    ptx = {
        True: "; newer GPUs compile its PTX",
        False: "; it holds no PTX for newer ones",
        None: "",
    }[build.ptx]
    reason = f"GPU code in the build; code for sm_80 also runs on 8.6{ptx}"
    return Choice(
        what="gpu",
        value=" ".join(build.architectures),
        reason=reason,
        source=build.architectures_source or NO_SOURCE,
    )


def _companions(spec: Spec, candidate: Candidate) -> Iterator[Choice]:
    release = candidate.release
    for name, version, source in (
        ("torchvision", release.torchvision, release.torchvision_source),
        ("torchaudio", release.companion_audio, release.torchaudio_source),
    ):
        if not spec.companions:
            yield Choice(
                what=name,
                value="left out",
                reason="asked for with --no-companions",
                source="spec.yml",
            )
        elif version is None:
            reason = (
                "this release has none"
                if name == "torchvision"
                else "torchaudio ends with 2.11 (pytorch/audio#4212)"
            )
            yield Choice(what=name, value="none", reason=reason, source=source)
        elif name == "torchaudio" and candidate.source == "conda-forge":
            reason = (
                "which torchaudio conda-forge has is not known; ask for it with --conda torchaudio"
            )
            yield Choice(what=name, value="left out", reason=reason, source=NO_SOURCE)
        elif candidate.source == "conda-forge":
            yield Choice(
                what=name, value=f"{catalog.minor(version)}.*", reason=COMPANION_LINE, source=source
            )
        else:
            yield Choice(what=name, value=version, reason=COMPANION, source=source)


def _glibc(spec: Spec, candidate: Candidate) -> Choice:
    value = glibc(spec, candidate)
    needed = candidate.glibc(spec.platforms)
    source = next(
        (
            build.glibc_source
            for platform in spec.platforms
            if (build := candidate.on(platform)) and build.glibc == needed
        ),
        None,
    )
    if spec.glibc:
        reason = ASKED + (
            f"; the build needs {needed}" if needed else "; what the build needs is not known"
        )
    elif needed == value:
        reason = "what the build needs"
    else:
        reason, source = (
            f"our default; {f'the build needs {needed}' if needed else 'what the build needs is not known'}",
            source or GLIBC_SOURCE,
        )
    return Choice(what="glibc", value=f">={value}", reason=reason, source=source or NO_SOURCE)


def _platforms(asked: Spec, candidate: Candidate) -> Choice:
    return Choice(
        what="platforms",
        value=", ".join(asked.platforms),
        reason=f"the build exists for {', '.join(candidate.platforms)}",
        source=candidate.origin,
    )


def _channels(asked: Spec, candidate: Candidate, channels: tuple[str, ...]) -> Choice:
    if candidate.source == "pytorch":
        reason, source = (
            "the pytorch channel first: the order decides between CUDA and CPU builds",
            "mamba-org/micromamba-docker#388",
        )
        if candidate.build and "nvidia" in channels:
            reason += f"; nvidia has what {candidate.build.specs[0]} selects"
            source += f"; {candidate.build.channels_source}"
    else:
        reason = "in the order asked for" if asked.channels else "the default"
        source = "spec.yml" if asked.channels else "provision"
    return Choice(what="channels", value=", ".join(channels), reason=reason, source=source)
