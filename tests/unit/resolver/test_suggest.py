"""The nearest combinations: each exists, runs on the machine, and changes as little as it can."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision import catalog, resolver, sources
from provision.catalog import minor, version_key
from provision.cli.spec_options import SPEC_OPTIONS
from provision.core.errors import NoSuchBuild
from provision.core.platforms import PLATFORMS
from provision.core.spec_fields import Spec
from provision.core.types import HostGpus
from provision.resolver import spec
from provision.resolver import suggest as nearby
from provision.resolver.resolution import leads_to
from provision.resolver.suggest import Neighbor


def nearest(request_spec: Spec, limit: int) -> list[Neighbor]:
    return nearby.nearest(request_spec, limit, leads_to)


RELEASES = list(catalog.releases())
MINORS = list(dict.fromkeys(map(minor, RELEASES)))
CUDAS = sorted({row.cuda for row in sources.candidates() if row.cuda}, key=version_key)


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
    "platforms": st.sampled_from([["linux-64"], ["linux-64"], ["linux-aarch64"], list(PLATFORMS)]),
}  # fmt: skip
machine: dict[str, st.SearchStrategy[Any]] = {
    "gpu": st.sampled_from([[], [], ["V100"], ["H100"], ["B200"], ["K80"], ["sm_86", "sm_120"]]),
    "driver": st.none() | st.sampled_from(["450.80.02", "470", "525", "535.183.01", "575.51.03"]),
    "glibc": st.none() | st.sampled_from(["2.12", "2.17", "2.28"]),
}
on_machines = st.builds(request, **choices, **machine)


@settings(deadline=None, max_examples=60)
@given(request_spec=on_machines)
def test_every_suggestion_resolves_to_its_build(request_spec: Spec) -> None:
    """The words that are offered, typed in place of those that they change, come to the build that
    they were offered for."""
    try:
        resolver.resolve(request_spec)
    except NoSuchBuild as error:
        for neighbor in nearest(request_spec, 3):
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
        if key not in ("torch", "cuda", "cpu")
    }
    return spec.combine({}, {**unchanged, **options}, name="")


def test_suggestions_respect_the_added_packages() -> None:
    """What would be refused beside them is not offered."""
    with pytest.raises(NoSuchBuild) as caught:
        resolver.resolve(
            spec.combine({}, {"torch": "2.3", "cuda": "11.6", "pip": ["nvidia-nccl-cu12"]}, name="")
        )
    advice = caught.value.advice or ""
    assert "--cuda 12." in advice and "--cuda 11" not in advice


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
    requested = {"torch": "2.9", "cuda": "12.7", "python": "3.12"}
    neighbors = nearest(spec.combine({}, requested, name=""), 3)
    assert [(neighbor.changed, neighbor.options) for neighbor in neighbors] == [
        (("cuda",), "--torch 2.9 --cuda 12.8 --python 3.12"),
    ]
