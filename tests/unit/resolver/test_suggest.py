"""The nearest combinations, against a brute-force oracle that knows only the facts: all that
exists, how far each is, the closest."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provision import catalog, resolver, sources
from provision.catalog import minor, version_key
from provision.cli.spec_options import SPEC_OPTIONS
from provision.core.errors import NoSuchBuild
from provision.core.platforms import PLATFORMS, Platform
from provision.core.spec_fields import Spec
from provision.core.types import BuildSource, HostGpus
from provision.resolver import spec
from provision.resolver import suggest as nearby
from provision.resolver.resolution import leads_to
from provision.resolver.suggest import ACROSS, Neighbor


def nearest(request_spec: Spec, limit: int) -> list[Neighbor]:
    return nearby.nearest(request_spec, limit, leads_to)


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
    is_released: bool


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
def points(requested: tuple[Platform, ...], nccl_matters: bool) -> tuple[Point, ...]:
    """Everything that exists, on any of the platforms asked for, or on another."""
    return tuple(
        Point(
            release.version,
            build.cuda if build else None,
            source,
            platforms,
            python,
            nccl,
            is_released=not (build and build.unreleased),
        )
        for release, source, build, everywhere in builds()
        for platforms in subsets(release, source, build, requested, everywhere)
        for python in pythons(release, source, build, platforms)
        for nccl in (nccls(source, build, platforms) if nccl_matters else [None])
    )


def subsets(
    release: catalog.Release,
    source: str,
    build: catalog.Build | None,
    requested: Any,
    everywhere: Any,
) -> set[tuple[Platform, ...]]:
    """On which platforms a build can be, of those asked for; wheels only where they have one name
    on all of them."""
    existing = tuple(platform for platform in requested if platform in everywhere) or everywhere[:1]
    names = (
        {
            release.index_default[platform].build == (build.tag if build else "cpu")
            for platform in existing
        }
        if source == "wheels"
        else {True}
    )
    return {existing if len(names) == 1 else existing[:1]}


def pythons(
    release: catalog.Release, source: BuildSource, build: catalog.Build | None, platforms: Any
) -> list[str]:
    def on(platform: Platform) -> tuple[str, ...]:
        if build:
            return build.for_platform(platform).python or release.python
        if source == "wheels":
            return release.index_default[platform].python
        pythons = [
            other.for_platform(platform).python or ()
            for other in sources.by_name(source).builds(release)
            if platform in other.platforms
        ]
        return tuple(itertools.chain(*pythons)) or release.python

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
        carried = {build.for_platform(platform).nccl for platform in platforms}
        return [carried.pop() if len(carried) == 1 else None]
    floor = max(
        version_key(build.for_platform(platform).nccl_floor or "0") for platform in platforms
    )
    fitting = [
        v
        for v, entry in catalog.nccl_on_conda_forge().items()
        if entry.runs_with(build.cuda) and version_key(v) >= floor
    ]
    return [*fitting] or [None]


def starts(version: str | None, prefix: str) -> bool:
    return version is not None and f"{version}.".startswith(f"{prefix}.")


@functools.cache
def place(version: str, scale: tuple[str, ...]) -> int:
    return sum(version_key(other) < version_key(version) for other in scale)


def distance_between(version: str, versions: list[str], scale: list[str]) -> int:
    return min(abs(place(version, tuple(scale)) - place(other, tuple(scale))) for other in versions)


@functools.cache
def releases_meant(torch: str) -> tuple[str, ...]:
    try:
        return tuple(release.version for release in catalog.matching_releases(torch))
    except NoSuchBuild:
        return ()


def distance(point: Point, request_spec: Spec) -> tuple[int, int]:
    """How many choices differ, and how many versions lie between."""
    steps = []
    requested = releases_meant(request_spec.torch)
    if point.torch not in requested:
        steps.append(
            distance_between(
                minor(point.torch),
                [minor(v) for v in requested or re.findall(r"[\d.]+", request_spec.torch)],
                MINORS,
            )
        )
    if point.cuda is None or request_spec.cuda is None:
        steps += [] if point.cuda is request_spec.cuda else [ACROSS]
    elif not starts(point.cuda, request_spec.cuda):
        steps.append(
            distance_between(
                point.cuda,
                [c for c in CUDAS if starts(c, request_spec.cuda)] or [request_spec.cuda],
                CUDAS,
            )
        )
    steps += [0] if request_spec.source not in ("auto", point.source) else []
    steps += (
        [len(set(request_spec.platforms) - set(point.platforms))]
        if point.platforms != request_spec.platforms
        else []
    )
    if request_spec.python not in (None, point.python):
        steps.append(abs(int(point.python[2:]) - int((request_spec.python or "")[2:])))
    if request_spec.nccl and not starts(point.nccl, request_spec.nccl):
        versions = [v for v in NCCLS if starts(v, request_spec.nccl)] or [request_spec.nccl]
        steps.append(distance_between(point.nccl, versions, NCCLS) if point.nccl else ACROSS)
    return len(steps), sum(steps)


def request(*, flavor: dict[str, Any], **requested: Any) -> Spec:
    """What a CPU build has nothing to do with is not asked of it."""
    unchanged = {
        key: value
        for key, value in requested.items()
        if "cpu" not in flavor or key not in spec.GPU_KEYS
    }
    return spec.combine({}, {**unchanged, **flavor}, name="")


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
@given(request_spec=requests)
@example(
    request_spec=request(
        torch="1.12.0",
        flavor={"cuda": "12.9"},
        source="wheels",
        python=None,
        nccl=None,
        platforms=["linux-64"],
    )
)
def test_nearest_versions(request_spec: Spec) -> None:
    try:
        resolver.resolve(request_spec)
    except NoSuchBuild:
        pass
    else:
        assert min(
            distance(point, request_spec)
            for point in points(request_spec.platforms, request_spec.nccl is not None)
        ) == (0, 0)
        return
    neighbors = nearest(request_spec, 6)
    far: dict[tuple[str, str | None, str], tuple[int, int]] = {}
    for point in points(request_spec.platforms, request_spec.nccl is not None):
        if not point.is_released:  # taken where a request insists, but never suggested
            continue
        key = (minor(point.torch), point.cuda, point.source)
        far[key] = min(far.get(key, (99, 0)), distance(point, request_spec))
    assert far and min(far.values()) > (0, 0)
    assert [neighbor.distance for neighbor in neighbors] == sorted(
        neighbor.distance for neighbor in neighbors
    )
    assert neighbors[0].distance == min(far.values())
    for neighbor in neighbors:  # each is as far as it says, and nothing nearer was left out
        assert (
            neighbor.distance
            >= far[
                minor(neighbor.candidate.release.version),
                neighbor.candidate.cuda,
                neighbor.candidate.source.name,
            ]
        )
    nearer = {(key[0], key[1]) for key, steps in far.items() if steps < neighbors[-1].distance}
    assert nearer <= {
        (minor(neighbor.candidate.release.version), neighbor.candidate.cuda)
        for neighbor in neighbors
    }


@settings(deadline=None, max_examples=60)
@given(request_spec=on_machines)
def test_every_suggestion_resolves_to_its_build(request_spec: Spec) -> None:
    """The words that are offered, typed in place of those that they change, come to the build that
    they were offered for."""
    try:
        resolver.resolve(request_spec)
    except NoSuchBuild as error:
        for neighbor in nearest(request_spec, 6):
            assert f"`{neighbor.options}`" in (error.advice or "")
            resolution = resolver.resolve(typed(neighbor, request_spec))
            assert (resolution.torch, resolution.cuda, resolution.source) == (
                neighbor.candidate.release.version,
                neighbor.candidate.cuda,
                neighbor.candidate.source.name,
            )
            assert neighbor.spec.python in (None, resolution.python)
            assert resolution.platforms == neighbor.spec.platforms


def typed(offered: Neighbor, request_spec: Spec) -> Spec:
    """The spec of a command line, with the options that the offer says nothing about as they were."""
    arguments = shlex.split(offered.options)
    options: dict[str, Any] = {}
    while arguments:
        option = arguments.pop(0).removeprefix("--")
        if option == "cpu":
            options["cpu"] = True
        elif option == "platform":
            options.setdefault("platforms", []).append(arguments.pop(0))
        else:
            options[option] = arguments.pop(0)
    assert set(options) <= set(SPEC_OPTIONS)
    unchanged = {
        key: value
        for key, value in spec.content(request_spec).items()
        if key not in ("torch", "cuda", "cpu", *offered.dropped)
    }
    return spec.combine({}, {**unchanged, **options}, name="")


@pytest.mark.parametrize(
    "requested,offer",
    [
        (
            {"torch": "2.3", "cuda": "12.6", "nccl": "2.99"},
            "`--torch 2.3 --cuda 12.0 --nccl 2.30.4` (conda-forge)",
        ),
        ({"torch": "1.12", "cuda": "12.1", "nccl": "2.99", "source": "pytorch"}, "without --nccl"),
    ],
)
def test_offer_names_known_values_or_options_to_omit(requested: dict[str, Any], offer: str) -> None:
    with pytest.raises(NoSuchBuild) as caught:
        resolver.resolve(spec.combine({}, requested, name=""))
    assert offer in str(caught.value)


def test_suggestions_respect_the_added_packages() -> None:
    """What would be refused beside them is not offered."""
    with pytest.raises(NoSuchBuild) as caught:
        resolver.resolve(
            spec.combine({}, {"torch": "2.3", "cuda": "11.6", "pip": ["nvidia-nccl-cu12"]}, name="")
        )
    assert "--cuda 12.1" in (caught.value.advice or "") and "--cuda 11" not in (
        caught.value.advice or ""
    )


def test_suggestions_resolve_without_this_machine() -> None:
    request_spec = spec.combine({}, {"torch": "1.12", "cuda": "auto", "source": "wheels"}, name="")
    with pytest.raises(NoSuchBuild) as caught:
        resolver.resolve(request_spec, HostGpus(gpus=("B200",), driver="575.51.03"))
    for options in re.findall(r"`(--torch [^`]+)`", caught.value.advice or ""):
        arguments = shlex.split(options)
        parsed = dict(
            zip((argument.removeprefix("--") for argument in arguments[::2]), arguments[1::2])
        )
        resolution = resolver.resolve(spec.combine({}, parsed, name=""))
        assert resolution.cuda == parsed["cuda"] and resolution.architectures


def test_suggestions_never_drop_the_machine() -> None:
    """Nothing that would not run on the GPU, the driver and the glibc is offered, and no CPU build."""
    request_spec = spec.combine(
        {},
        {"torch": "2.3", "cuda": "12.1", "gpu": ["B200"], "driver": "575.51.03", "glibc": "2.28"},
        name="",
    )
    neighbors = nearest(request_spec, 50)
    assert neighbors
    for neighbor in neighbors:
        assert neighbor.candidate.build is not None
        assert (
            catalog.runs_on_gpu(neighbor.candidate.build, catalog.find_gpu("B200"), "575.51.03")
            == "yes"
        )
        assert catalog.runs_on_driver(neighbor.candidate.build.cuda, "575.51.03") == "yes"


def test_refusal_says_if_no_build_runs_on_the_machine() -> None:
    with pytest.raises(NoSuchBuild, match=r"Nothing in the table comes near it"):
        resolver.resolve(
            spec.combine({}, {"torch": "2.3", "cuda": "12.1", "driver": "390.10"}, name="")
        )


def test_suggestion_changes_as_little_as_possible() -> None:
    neighbors = nearest(
        spec.combine(
            {}, {"torch": "2.9", "cuda": "12.8", "nccl": "2.28", "python": "3.12"}, name=""
        ),
        1,
    )
    assert neighbors[0].options == "--torch 2.9 --cuda 12.9 --python 3.12 --nccl 2.28"
    assert neighbors[0].changed == ("cuda",)
