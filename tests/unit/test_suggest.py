"""The nearest combinations, against a brute-force oracle that knows only the facts: all that exists, how far each is, the closest."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision import catalog, resolver, sources
from provision.catalog import minor, version_key
from provision.cli.options import SPEC_OPTIONS
from provision.core.errors import NoSuchBuild
from provision.core.spec_fields import Spec
from provision.core.types import PLATFORMS, BuildSource, Machine, Platform
from provision.resolver import spec
from provision.resolver import suggest as nearby
from provision.resolver.resolution import leads_to
from provision.resolver.suggest import ACROSS, Neighbor


def nearest(wanted: Spec, limit: int) -> list[Neighbor]:
    return nearby.nearest(wanted, limit, leads_to)


RELEASES = list(catalog.releases())
MINORS = list(dict.fromkeys(map(minor, RELEASES)))


@dataclass(frozen=True)
class Point:
    """A combination that exists."""

    torch: str
    cuda: str | None
    source: str
    platforms: tuple[Platform, ...]
    python: str
    nccl: str | None


def builds() -> Iterator[tuple[catalog.Release, Any, catalog.Build | None, tuple[Platform, ...]]]:
    for release in catalog.releases().values():
        for source in sources.names():
            of_source = sources.by_name(source).builds(release)
            for build in of_source:
                yield release, source, build, build.platforms
            if of_source:
                everywhere = {
                    "wheels": PLATFORMS,
                    "pytorch": PLATFORMS[:1],
                    "conda-forge": PLATFORMS,
                }[source]
                yield (
                    release,
                    source,
                    None,
                    tuple(
                        platform
                        for platform in everywhere
                        if source != "wheels" or platform in release.index_default
                    ),
                )


CUDAS = sorted({build.cuda for _, _, build, _ in builds() if build}, key=version_key)
NCCLS = sorted(
    {build.nccl for _, _, build, _ in builds() if build and build.nccl}
    | catalog.nccl_on_conda_forge().keys(),
    key=version_key,
)


@functools.cache
def points(asked: tuple[Platform, ...], nccl_matters: bool) -> tuple[Point, ...]:
    """Everything that exists, on any of the platforms asked for, or on another."""
    return tuple(
        Point(release.version, build.cuda if build else None, source, platforms, python, nccl)
        for release, source, build, everywhere in builds()
        for platforms in subsets(release, source, build, asked, everywhere)
        for python in pythons(release, source, build, platforms)
        for nccl in (nccls(source, build, platforms) if nccl_matters else [None])
    )


def subsets(
    release: catalog.Release, source: str, build: catalog.Build | None, asked: Any, everywhere: Any
) -> set[tuple[Platform, ...]]:
    """On which platforms a build can be, of those asked for; wheels only where they have one name on all of them."""
    kept = tuple(platform for platform in asked if platform in everywhere) or everywhere[:1]
    names = (
        {
            release.index_default[platform].build == (build.tag if build else "cpu")
            for platform in kept
        }
        if source == "wheels"
        else {True}
    )
    return {kept if len(names) == 1 else kept[:1]}


def pythons(
    release: catalog.Release, source: BuildSource, build: catalog.Build | None, platforms: Any
) -> list[str]:
    def on(platform: Platform) -> tuple[str, ...]:
        if build:
            return build.for_platform(platform).python or release.python
        if source == "wheels":
            return release.index_default[platform].python
        known = [
            one.for_platform(platform).python or ()
            for one in sources.by_name(source).builds(release)
            if platform in one.platforms
        ]
        return tuple(itertools.chain(*known)) or release.python

    common = set.intersection(*(set(on(platform)) for platform in platforms))
    if source == "wheels" and release.companions_python is not None:
        common &= set(release.companions_python)
    return sorted(common, key=version_key)


def nccls(
    source: str, build: catalog.Build | None, platforms: tuple[Platform, ...]
) -> list[str | None]:
    if build is None:
        return [None]
    if source != "conda-forge":
        return [build.nccl]
    floor = max(
        version_key(build.for_platform(platform).nccl_floor or "0") for platform in platforms
    )
    fitting = [
        v
        for v, one in catalog.nccl_on_conda_forge().items()
        if one.runs_with(build.cuda) and version_key(v) >= floor
    ]
    return [*fitting] or [None]


def starts(version: str | None, prefix: str) -> bool:
    return version is not None and f"{version}.".startswith(f"{prefix}.")


@functools.cache
def place(version: str, known: tuple[str, ...]) -> int:
    return sum(version_key(other) < version_key(version) for other in known)


def apart(version: str, meant: list[str], known: list[str]) -> int:
    return min(abs(place(version, tuple(known)) - place(one, tuple(known))) for one in meant)


@functools.cache
def releases_meant(torch: str) -> tuple[str, ...]:
    try:
        return tuple(release.version for release in catalog.matching_releases(torch))
    except NoSuchBuild:
        return ()


def distance(point: Point, wanted: Spec) -> tuple[int, int]:
    """How many choices differ, and how many versions lie between."""
    steps = []
    asked = releases_meant(wanted.torch)
    if point.torch not in asked:
        steps.append(
            apart(
                minor(point.torch),
                [minor(v) for v in asked or re.findall(r"[\d.]+", wanted.torch)],
                MINORS,
            )
        )
    if point.cuda is None or wanted.cuda is None:
        steps += [] if point.cuda is wanted.cuda else [ACROSS]
    elif not starts(point.cuda, wanted.cuda):
        steps.append(
            apart(point.cuda, [c for c in CUDAS if starts(c, wanted.cuda)] or [wanted.cuda], CUDAS)
        )
    steps += [0] if wanted.source not in ("auto", point.source) else []
    steps += (
        [len(set(wanted.platforms) - set(point.platforms))]
        if point.platforms != wanted.platforms
        else []
    )
    if wanted.python not in (None, point.python):
        steps.append(abs(int(point.python[2:]) - int((wanted.python or "")[2:])))
    if wanted.nccl and not starts(point.nccl, wanted.nccl):
        meant = [v for v in NCCLS if starts(v, wanted.nccl)] or [wanted.nccl]
        steps.append(apart(point.nccl, meant, NCCLS) if point.nccl else ACROSS)
    return len(steps), sum(steps)


def request(*, flavor: dict[str, Any], **asked: Any) -> Spec:
    """What a CPU build has nothing to do with is not asked of it."""
    kept = {
        key: value
        for key, value in asked.items()
        if "cpu" not in flavor or key not in spec.ABOUT_GPUS
    }
    return spec.combine({}, {**kept, **flavor}, name="")


choices: dict[str, st.SearchStrategy[Any]] = {
    "torch": st.sampled_from([*RELEASES, *MINORS, "2", "latest", ">=2.3,<2.6", "9.9", "1.5", ">=3", "2.3.7"]),
    "flavor": st.sampled_from([*({"cuda": cuda} for cuda in [*CUDAS, "12", "13", "12.7", "9.2", "99.0"]), {"cpu": True}]),
    "source": st.sampled_from(["auto", *sources.names()]),
    "python": st.none() | st.sampled_from(["3.7", "3.9", "3.11", "3.13", "3.16"]),
    "nccl": st.none() | st.sampled_from(["2.14", "2.20.5", "2.28", "2.16.5", "2.99"]),
    "platforms": st.sampled_from([["linux-64"], ["linux-64"], ["linux-aarch64"], list(PLATFORMS)]),
}  # fmt: skip
machine: dict[str, st.SearchStrategy[Any]] = {
    "gpu": st.sampled_from([[], [], ["V100"], ["H100"], ["B200"], ["K80"], ["sm_86", "sm_120"]]),
    "driver": st.none() | st.sampled_from(["450.80.02", "470", "525", "535.183.01", "575.51.03"]),
    "glibc": st.none() | st.sampled_from(["2.12", "2.17", "2.28"]),
    "cudnn": st.none() | st.sampled_from(["7", "8", "8.9.2.26", "9", "9.8", "9.99"]),
}
requests = st.builds(request, **choices)
on_machines = st.builds(request, **choices, **machine)


@settings(deadline=None, max_examples=25)
@given(wanted=requests)
def test_the_nearest_are_the_nearest(wanted: Spec) -> None:
    try:
        resolver.resolve(wanted)
    except NoSuchBuild:
        pass
    else:
        assert min(
            distance(point, wanted) for point in points(wanted.platforms, wanted.nccl is not None)
        ) == (0, 0)
        return
    told = nearest(wanted, 6)
    far: dict[tuple[str, str | None, str], tuple[int, int]] = {}
    for point in points(wanted.platforms, wanted.nccl is not None):
        key = (minor(point.torch), point.cuda, point.source)
        far[key] = min(far.get(key, (99, 0)), distance(point, wanted))
    assert far and min(far.values()) > (0, 0)
    assert [one.distance for one in told] == sorted(one.distance for one in told)
    assert told[0].distance == min(far.values())
    for one in told:  # each is as far as it says, and nothing nearer was left out
        assert (
            one.distance
            >= far[
                minor(one.candidate.release.version), one.candidate.cuda, one.candidate.source.name
            ]
        )
    nearer = {(key[0], key[1]) for key, one in far.items() if one < told[-1].distance}
    assert nearer <= {(minor(one.candidate.release.version), one.candidate.cuda) for one in told}


@settings(deadline=None, max_examples=60)
@given(wanted=on_machines)
def test_what_is_offered_can_be_had(wanted: Spec) -> None:
    """The words that are offered, typed in place of those that they change, come to the build that they were offered for."""
    try:
        resolver.resolve(wanted)
    except NoSuchBuild as error:
        for one in nearest(wanted, 6):
            assert f"`{one.options}`" in (error.advice or "")
            found = resolver.resolve(typed(one, wanted))
            assert (found.torch, found.cuda, found.source) == (
                one.candidate.release.version,
                one.candidate.cuda,
                one.candidate.source.name,
            )
            assert one.spec.python in (None, found.python)
            assert found.platforms == one.spec.platforms


def typed(offered: Neighbor, wanted: Spec) -> Spec:
    """The spec of a command line, with the options that the offer says nothing about as they were."""
    words = shlex.split(offered.options)
    given: dict[str, Any] = {}
    while words:
        option = words.pop(0).removeprefix("--")
        if option == "cpu":
            given["cpu"] = True
        elif option == "platform":
            given.setdefault("platforms", []).append(words.pop(0))
        else:
            given[option] = words.pop(0)
    assert set(given) <= set(SPEC_OPTIONS)
    kept = {
        key: value
        for key, value in spec.content(wanted).items()
        if key not in ("torch", "cuda", "cpu", *offered.dropped)
    }
    return spec.combine({}, {**kept, **given}, name="")


@pytest.mark.parametrize(
    "asked,offer",
    [
        (
            {"torch": "2.3", "cuda": "12.6", "nccl": "2.99"},
            "`--torch 2.3 --cuda 12.0 --nccl 2.30.4` (conda-forge)",
        ),
        ({"torch": "1.12", "cuda": "12.1", "nccl": "2.99", "source": "pytorch"}, "without --nccl"),
    ],
)
def test_an_offer_names_what_is_known_or_what_to_leave_out(
    asked: dict[str, Any], offer: str
) -> None:
    with pytest.raises(NoSuchBuild) as caught:
        resolver.resolve(spec.combine({}, asked, name=""))
    assert offer in str(caught.value)


def test_packages_that_are_kept_are_minded() -> None:
    """What would be refused beside them is not offered."""
    with pytest.raises(NoSuchBuild) as caught:
        resolver.resolve(
            spec.combine({}, {"torch": "2.3", "cuda": "11.6", "pip": ["nvidia-nccl-cu12"]}, name="")
        )
    assert "--cuda 12.1" in (caught.value.advice or "") and "--cuda 11" not in (
        caught.value.advice or ""
    )


def test_nothing_is_offered_for_this_machine_that_words_alone_do_not_lead_to() -> None:
    wanted = spec.combine({}, {"torch": "1.12", "cuda": "auto", "source": "wheels"}, name="")
    with pytest.raises(NoSuchBuild) as caught:
        resolver.resolve(wanted, Machine(gpus=("B200",), driver="575.51.03"))
    for options in re.findall(r"`(--torch [^`]+)`", caught.value.advice or ""):
        words = shlex.split(options)
        given = dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2]))
        found = resolver.resolve(spec.combine({}, given, name=""))
        assert found.cuda == given["cuda"] and found.architectures


def test_a_machine_is_never_given_up() -> None:
    """Nothing that would not run on the GPU, the driver and the glibc is offered, and no CPU build."""
    wanted = spec.combine(
        {},
        {"torch": "2.3", "cuda": "12.1", "gpu": ["B200"], "driver": "575.51.03", "glibc": "2.28"},
        name="",
    )
    told = nearest(wanted, 50)
    assert told
    for one in told:
        assert one.candidate.build is not None
        assert (
            catalog.runs_on_gpu(one.candidate.build, catalog.find_gpu("B200"), "575.51.03") == "yes"
        )
        assert catalog.runs_on_driver(one.candidate.build.cuda, "575.51.03") == "yes"


def test_where_nothing_comes_near_that_is_said() -> None:
    with pytest.raises(NoSuchBuild, match=r"Nothing in the table comes near it"):
        resolver.resolve(
            spec.combine({}, {"torch": "2.3", "cuda": "12.1", "driver": "390.10"}, name="")
        )


def test_what_was_asked_for_and_can_stay_stays() -> None:
    told = nearest(
        spec.combine(
            {}, {"torch": "2.9", "cuda": "12.8", "nccl": "2.28", "python": "3.12"}, name=""
        ),
        1,
    )
    assert told[0].options == "--torch 2.9 --cuda 12.9 --python 3.12 --nccl 2.28"
    assert told[0].changed == ("cuda",)
