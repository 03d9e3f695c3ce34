"""What must hold of every combination in the table: exact, every rule respected, readable by
conda's parser and rattler's, and the same again from what was written down."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from provision import catalog, render, resolver, sources
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.platforms import PLATFORMS
from provision.core.spec_fields import SPEC_KEYS, Spec
from provision.core.types import HostGpus, Resolution
from provision.resolver import spec

GPUS = ["V100", "H100", "sm_86", "B200", "RTX 4090", "sm_121"]


def builds() -> Iterator[tuple[catalog.Release, str, catalog.Build | None]]:
    """Every build of the table, from the facts themselves; None is the CPU build."""
    for release in catalog.releases().values():
        for source in sources.names():
            yield from (
                (release, source, build) for build in sources.by_name(source).builds(release)
            )
            if sources.by_name(source).builds(release):
                yield release, source, None


BUILDS = list(builds())
of_a_release = pytest.mark.parametrize(
    "rows",
    [[row for row in BUILDS if row[0] is release] for release in catalog.releases().values()],
    ids=list(catalog.releases()),
)
Cells = list[tuple[catalog.Release, str, catalog.Build | None]]


def exact(release: catalog.Release, source: str, build: catalog.Build | None, **more: Any) -> Spec:
    flavor = {"cuda": build.cuda} if build else {"cpu": True}
    return spec.combine({}, {"torch": release.version, "source": source, **flavor, **more}, name="")


requests = st.builds(
    lambda row, python, companions, jupyter, fast_checkpoints, infiniband, platforms, gpu, glibc, extra: (
        exact(
            *row,
            python=python,
            companions=companions,
            jupyter=jupyter,
            fast_checkpoints=fast_checkpoints,
            infiniband=infiniband,
            platforms=platforms,
            gpu=gpu if row[2] else (),
            glibc=glibc,
            pip=extra,
        )
    ),
    row=st.sampled_from(BUILDS),
    python=st.none() | st.sampled_from(["3.8", "3.10", "3.12", "3.14"]),
    companions=st.booleans(),
    jupyter=st.booleans(),
    fast_checkpoints=st.booleans(),
    infiniband=st.booleans(),
    platforms=st.sampled_from([[], ["linux-64"], ["linux-aarch64"], list(PLATFORMS)]),
    gpu=st.lists(st.sampled_from(GPUS), max_size=2),
    glibc=st.none() | st.sampled_from(["2.17", "2.28", "2.39"]),
    extra=st.sampled_from([(), (), (), ("einops>=0.7",), ("nvidia-nccl-cu12",)]),
)


def resolved(request: Spec) -> Resolution | None:
    """The resolution, or None where it is refused with something to do about it."""
    try:
        return resolver.resolve(request)
    except (NoSuchBuild, InvalidSpec) as error:
        assert error.message
        assert error.advice or "Remove it" in error.message or "Keep one" in error.message
        return None


@of_a_release
def test_every_build_can_be_requested_exactly(rows: Cells) -> None:
    for release, source, build in rows:
        resolution = resolver.resolve(exact(release, source, build))
        assert (resolution.torch, resolution.source, resolution.cuda) == (
            release.version,
            source,
            build.cuda if build else None,
        )
        check(resolution)


@settings(deadline=None, max_examples=60)
@given(request=requests)
def test_every_resolution_respects_every_rule(request: Spec) -> None:
    resolution = resolved(request)
    if resolution is not None:
        assert (resolution.torch, resolution.source, resolution.cuda, resolution.platforms) == (
            request.torch,
            request.source,
            request.cuda,
            request.platforms,
        )
        assert request.python in (None, resolution.python)
        assert request.glibc in (None, dict(resolution.virtual_packages)["__glibc"])
        check(resolution)


def check(resolution: Resolution) -> None:
    """Every pin has its reason; every rule has its consequence; one family of NVIDIA wheels; a
    companion is never a known bad one."""
    lines = [pin.requirement for pin in resolution.pins]
    message = [(pin.reason, pin.source) for pin in resolution.pins] + [
        (row.reason, row.source) for row in (*resolution.choices, *resolution.warnings)
    ]
    assert all(reason and source for reason, source in message)
    for rule in catalog.rules():
        if (
            rule.consequence == "pin"
            and resolution.source in (rule.sources or sources.names())
            and SpecifierSet(rule.torch).contains(resolution.torch)
            and holds_for_cuda(rule, resolution.cuda)
        ):
            assert rule.requirement in lines, rule.id
        if (
            rule.consequence == "warn"
            and rule.nccl
            and resolution.nccl
            and _plain(rule)
            and _holds(rule, resolution)
        ):
            assert rule.id in [warning.what for warning in resolution.warnings]
    families = {
        name[-2:] for line in lines if (name := re.split(r"[=<>~ ]", line)[0]).startswith("nvidia-")
    }
    assert families <= ({resolution.cuda.split(".")[0]} if resolution.cuda else set())
    assert not any(line.startswith("torchvision==0.15.0") for line in lines)
    assert not any("torchaudio" in line for line in lines) or catalog.version_key(
        resolution.torch
    ) < (
        2,
        12,
    )
    assert ("rdma-core" in lines) == resolution.spec.infiniband
    assert ("ipykernel" in lines) == resolution.spec.jupyter
    xxhash = "xxhash>=2" if resolution.source == "wheels" else "python-xxhash>=2"
    assert [line for line in lines if "xxhash" in line] == [
        xxhash
    ] * resolution.spec.fast_checkpoints


def holds_for_cuda(rule: catalog.CompatibilityRule, cuda: str | None) -> bool:
    return rule.cuda is None or (cuda is not None and SpecifierSet(rule.cuda).contains(cuda))


def _plain(rule: catalog.CompatibilityRule) -> bool:
    return not (
        rule.package
        or rule.channels
        or rule.through_ptx
        or rule.platforms
        or rule.python
        or rule.cuda
    )


def _holds(rule: catalog.CompatibilityRule, resolution: Resolution) -> bool:
    inside = SpecifierSet(rule.nccl or "").contains(resolution.nccl or "")
    return (
        inside
        and SpecifierSet(rule.torch).contains(resolution.torch)
        and resolution.source in (rule.sources or sources.names())
    )


@settings(deadline=None, max_examples=60)
@given(request=requests)
def test_written_spec_resolves_the_same(
    tmp_path_factory: pytest.TempPathFactory, request: Spec
) -> None:
    resolution = resolved(request)
    if resolution is None:
        return
    again = resolver.resolve(resolution.spec)
    assert (again.spec, again.pins, again.channels, again.virtual_packages) == (
        resolution.spec,
        resolution.pins,
        resolution.channels,
        resolution.virtual_packages,
    )
    path = tmp_path_factory.getbasetemp() / "spec.yml"
    path.write_text(render.render_spec(resolution.spec.name, spec.content(resolution.spec)))
    assert spec.combine(spec.read(path), {}, name=resolution.spec.name) == resolution.spec


open_requests = st.builds(
    lambda torch, cuda, source, python: spec.combine(
        {}, {"torch": torch, "source": source, "python": python, **cuda}, name=""
    ),
    torch=st.sampled_from(
        ["2", "1", "latest", ">=2.3,<2.6", "~=2.1", "!=2.9.0", "2.3", "2.4", "2.6", "2.8.0"]
    ),
    cuda=st.sampled_from(
        [
            {"cuda": "12"},
            {"cuda": "11"},
            {"cuda": "13"},
            {"cuda": "auto"},
            {"cuda": "12.1"},
            {"cpu": True},
        ]
    ),
    source=st.sampled_from(["auto", "auto", *sources.names()]),
    python=st.none() | st.sampled_from(["3.8", "3.12"]),
)
machines = st.builds(
    HostGpus,
    driver=st.sampled_from(["450.80.02", "535.183.01", "590.44.01"]),
    gpus=st.sampled_from(GPUS).map(lambda gpu: (gpu,)),
)


@settings(deadline=None, max_examples=60)
@given(request=open_requests, machine=machines)
def test_open_choices_are_decided_for_every_machine(request: Spec, machine: HostGpus) -> None:
    """No machine is needed to resolve it again, and nothing of this one is written down."""
    try:
        resolution = resolver.resolve(request, machine)
    except NoSuchBuild:
        return
    assert (resolution.spec.gpu, resolution.spec.driver) == ((), None)
    assert (
        re.fullmatch(r"\d+\.\d+(\.\d+)?", resolution.spec.torch)
        and resolution.spec.cuda == resolution.cuda
        and resolution.cuda != "auto"
    )
    again = resolver.resolve(resolution.spec, HostGpus(driver="1.0", gpus=("K80",)))
    assert (again.pins, again.spec, again.source) == (
        resolution.pins,
        resolution.spec,
        resolution.source,
    )
    if request.cuda == "auto":
        machine_spec = dataclasses.replace(resolution.spec, gpu=machine.gpus, driver=machine.driver)
        assert resolver.resolve(machine_spec).pins == resolution.pins  # it runs there
        newer = [
            row
            for row in sources.by_name(resolution.source).builds(
                catalog.releases()[resolution.torch]
            )
            if catalog.version_key(row.cuda) > catalog.version_key(resolution.cuda or "")
        ]
        for build in newer:
            assert _runs(build, machine) != "yes"


def _runs(build: catalog.Build, machine: HostGpus) -> str:
    gpu = catalog.runs_on_gpu(build, catalog.find_gpu(machine.gpus[0]), machine.driver)
    driver = catalog.runs_on_driver(build.cuda, machine.driver or "")
    return "yes" if (gpu, driver) == ("yes", "yes") else "no"


@of_a_release
def test_rendering_then_parsing_gives_the_request_back(rows: Cells) -> None:
    for row in rows:
        resolution = resolver.resolve(exact(*row, infiniband=True))
        texts = render.render_inputs(resolution)
        environment = yaml.safe_load(texts[render.ENVIRONMENT])
        assert set(environment) == {
            "name",
            "channels",
            "dependencies",
        }  # what conda env, micromamba and repo2docker know
        pip: list[str] = next(
            (item["pip"] for item in environment["dependencies"] if isinstance(item, dict)), []
        )
        assert pip == [pin.requirement for pin in resolution.pins if pin.manager == "pip"]
        conda = [item for item in environment["dependencies"] if isinstance(item, str)]
        assert conda == [pin.requirement for pin in resolution.pins if pin.manager == "conda"]
        assert f"python={resolution.python}" in conda
        assert environment["channels"] == list(resolution.channels)
        machine = yaml.safe_load(texts[render.VIRTUAL_PACKAGES])["subdirs"]
        assert machine == {
            platform: {"packages": dict(resolution.virtual_packages)}
            for platform in resolution.platforms
        }
        comments = [
            line for line in texts[render.ENVIRONMENT].splitlines() if line.lstrip().startswith("#")
        ]
        assert not any(
            "[" in line or "]" in line for line in comments
        )  # conda-lock reads these as platform selectors


def conda_spec(text: str) -> Any:
    """conda's own parser, as conda-lock carries it."""
    import importlib

    return importlib.import_module("conda_lock._vendor.conda.models.match_spec").MatchSpec(text)


def test_conda_and_rattler_parse_every_line() -> None:
    """And the build string that is pinned takes the CUDA build and leaves the CPU build, by both."""
    import rattler

    lines = {pin for row in BUILDS for pin in resolver.resolve(exact(*row, infiniband=True)).pins}
    for text in {pin.requirement for pin in lines if pin.manager == "conda"}:
        assert conda_spec(text).name in str(rattler.MatchSpec(text).name)
    for text in {pin.requirement for pin in lines if pin.manager == "pip"}:
        Requirement(text)


RECORDS = [  # build strings as they stand on the channels
    ("2.3.1", "pytorch", "12.1", "py3.11_cuda12.1_cudnn8.9.2_0", "py3.11_cpu_0"),
    ("2.1.0", "pytorch", "11.8", "py3.11_cuda11.8_cudnn8.7.0_0", "py3.11_cuda12.1_cudnn8.9.2_0"),
    (
        "2.6.0",
        "conda-forge",
        "12.6",
        "cuda126_mkl_py311_h4459643_304",
        "cpu_mkl_py311_hcab61ac_101",
    ),
    (
        "2.10.0",
        "conda-forge",
        "12.9",
        "cuda129_mkl_py311_h333e2d5_303",
        "cuda130_mkl_py311_h333e2d5_303",
    ),
    ("2.3.1", "conda-forge", None, "cpu_generic_py312h2f1fc2b_0", "cuda120_py312h26b3cf7_300"),
    ("2.3.1", "pytorch", None, "py3.11_cpu_0", "py3.11_cuda12.1_cudnn8.9.2_0"),
]


@pytest.mark.parametrize("version,source,cuda,selected,left", RECORDS)
def test_build_string_selects_exactly_one_build(
    version: str, source: str, cuda: str | None, selected: str, left: str
) -> None:
    flavor = {"cuda": cuda} if cuda else {"cpu": True}
    resolution = resolver.resolve(
        spec.combine({}, {"torch": version, "source": source, **flavor}, name="")
    )
    pin = next(
        pin.requirement
        for pin in resolution.pins
        if re.match(r"(pytorch::)?pytorch=", pin.requirement)
    ).rpartition("::")[2]

    def takes(build: str) -> bool:
        return bool(
            conda_spec(pin).match(
                {"name": "pytorch", "version": version, "build": build, "build_number": 0}
            )
        )

    assert takes(selected) and not takes(left)


def test_parsers_refuse_an_invalid_requirement() -> None:
    import rattler

    for parser in (conda_spec, rattler.MatchSpec):
        with pytest.raises(Exception, match=r"."):
            parser("pytorch=2.3.1=py3.11 cuda[")


def values_of(key: str) -> st.SearchStrategy[str]:
    """Any value that a key of a spec may have."""
    pattern = next(declared.pattern for declared in SPEC_KEYS if declared.name == key)
    return st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) < 20)


well_formed = st.fixed_dictionaries(
    {
        "torch": st.sampled_from(["latest", "~=2", "===2.3", "===x", ">=2.3rc1", "!=2.*", "<0", "==2.3.*,!=2.3.1"])
        | st.from_regex(r"\d{1,3}(\.\d{1,3}){0,2}", fullmatch=True)
    },
    optional={
        "cuda": values_of("cuda"), "cpu": st.just(True), "python": values_of("python"),
        "driver": values_of("driver"), "glibc": values_of("glibc"), "gpu": st.lists(values_of("gpu"), max_size=2), "infiniband": st.booleans(),
        "platforms": st.lists(values_of("platforms"), max_size=2), "source": st.sampled_from(["auto", *sources.names()]),
        "pip": st.lists(values_of("pip"), max_size=2), "conda": st.lists(values_of("conda"), max_size=2), "companions": st.booleans(),
    },
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(request=well_formed)
def test_well_formed_requests_are_resolved_or_refused(request: dict[str, Any]) -> None:
    try:
        resolution = resolver.resolve(
            spec.combine({}, request, name=""), HostGpus(driver="535.54.03", gpus=("sm_80",))
        )
    except (InvalidSpec, NoSuchBuild) as error:
        assert str(error)
    else:
        assert resolver.resolve(resolution.spec).pins == resolution.pins
