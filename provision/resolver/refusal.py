"""Why a request has no build: the facts that conflict, each with its source, and what exists instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from provision import catalog
from provision.catalog import version_key
from provision.core.errors import NoSuchBuild
from provision.core.types import PLATFORM, BuildSource, Spec
from provision.resolver import constraints
from provision.resolver.candidate import SOURCES, SPOKEN, Candidate, candidates_of
from provision.resolver.constraints import Axis
from provision.resolver.suggest import Neighbor, nearest

NEAREST = 6
FACTS = 3  # of a kind; a range has many builds, and each its own


def no_such_build(spec: Spec, leads_to: Callable[[Spec], Candidate | None]) -> NoSuchBuild:
    """The refusal of a spec that no candidate satisfies. leads_to: what a spec resolves to, by which every offer is tried."""
    facts = "; ".join(conflict(spec))
    near = [_offer(found) for found in nearest(spec, NEAREST, leads_to)]
    beside = " beside those packages" if spec.conda or spec.pip else ""
    advice = (
        f"Nearest: {'; '.join(near)}."
        if near
        else f"Nothing in the table comes near it: no build runs on that machine{beside}."
    )
    return NoSuchBuild(f"There is no build for {in_words(spec)}: {facts}.", advice=advice)


def _offer(found: Neighbor) -> str:
    """What to type instead, what to leave out, and where the build is from where the words do not say."""
    remarks: list[str] = [found.candidate.source] if found.spec.source == "auto" else []
    remarks += [f"without --{axis}" for axis in found.dropped]
    return f"`{found.options}`" + (f" ({', '.join(remarks)})" if remarks else "")


def in_words(spec: Spec) -> str:
    """What a spec asks for, in the words of a sentence."""
    named = {
        "CUDA": spec.cuda,
        "Python": spec.python,
        "NCCL": spec.nccl,
        "cuDNN": spec.cudnn,
        "driver": spec.driver,
        "glibc": spec.glibc,
    }
    words = [f"torch {spec.torch}", *([] if spec.cuda else ["CPU"])]
    words += [f"{what} {value}" for what, value in named.items() if value]
    words += [f"source {spec.source}"] if spec.source != "auto" else []
    words += [*spec.gpu, *(spec.platforms if spec.platforms != (PLATFORM,) else ())]
    return ", ".join(words)


def conflict(spec: Spec) -> list[str]:
    """The facts that stand against a request, each a sentence part with its source."""
    of_release = [
        candidate
        for version in reversed(constraints.releases_of(spec.torch))
        for candidate in candidates_of(version)
    ]
    if not of_release:
        known = list(catalog.releases())
        return [
            f"torch {spec.torch} is not in the table of known releases ({known[0]} to {known[-1]})"
        ]
    of_cuda = [candidate for candidate in of_release if constraints.passes(candidate, spec, "cuda")]
    if not of_cuda:
        return [*(_has(spec, of_release, source) for source in SOURCES), *_seen(spec, of_release)]
    of_source = [
        candidate for candidate in of_cuda if constraints.passes(candidate, spec, "source")
    ]
    if not of_source:
        assert spec.source != "auto"
        return [
            _has(spec, of_release, spec.source),
            *(_seen(spec, of_release) if spec.source == "wheels" else ()),
        ]
    return _objections(spec, of_source)


def _has(spec: Spec, of_release: Sequence[Candidate], source: BuildSource) -> str:
    """With which CUDAs a source has the releases asked for."""
    found = sorted(
        {
            candidate.cuda
            for candidate in of_release
            if candidate.source == source and candidate.cuda
        },
        key=version_key,
    )
    newest = of_release[0].release
    having = (
        f"torch {spec.torch} with CUDA {', '.join(found)} only"
        if found
        else f"no torch {spec.torch}"
    )
    return f"{SPOKEN[source]} {'have' if source == 'wheels' else 'has'} {having} ({newest.sources[source]})"


def _seen(spec: Spec, of_release: Sequence[Candidate]) -> list[str]:
    """What is known of wheels with that CUDA that are no part of the newest release which has such: whoever finds them should know."""
    known = (
        f"wheels of torch {candidate.release.version} with CUDA {cuda} are no part of the release: {note}"
        for candidate in of_release
        for cuda, note in candidate.release.unlisted.items()
        if spec.cuda and constraints.starts(cuda, spec.cuda)
    )
    return list(known)[:1]


REST: tuple[Axis, ...] = ("platform", "python", "nccl", "cudnn", "gpu", "driver", "glibc")


def _objections(spec: Spec, survivors: Sequence[Candidate]) -> list[str]:
    """What stands against all builds of that release, CUDA and source; where each fails by another choice, against the closest."""
    against = {
        candidate: found
        for candidate in survivors
        if (
            found := [
                one
                for axis in REST
                for one in constraints.CHECKS[axis](candidate, spec)
                if one.rules_out
            ]
        )
    }
    common = [
        axis
        for axis in REST
        if against and all(any(one.axis == axis for one in found) for found in against.values())
    ]
    if not common:
        return _some(map(str, min(against.values(), key=_count, default=())))
    seen: dict[tuple[str, str | None, str], Candidate] = {}
    for candidate in against:  # the newest patch release speaks for the others
        seen.setdefault((candidate.release.minor, candidate.cuda, candidate.source), candidate)
    return [
        text
        for axis in common
        for text in _some(
            str(one)
            for candidate in seen.values()
            for one in against[candidate]
            if one.axis == axis
        )
    ]


def _count(found: Sequence[object]) -> int:
    return len(found)


def _some(facts: Iterable[str]) -> list[str]:
    told = list(dict.fromkeys(facts))
    return told[:FACTS] + ([f"and {len(told) - FACTS} more"] if len(told) > FACTS else [])
