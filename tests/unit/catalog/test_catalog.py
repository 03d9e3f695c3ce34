"""The facts: complete, sourced, and consistent with each other; the questions that are asked of
them."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from packaging.specifiers import SpecifierSet

from provision import catalog, sources
from provision.catalog.data_files import check_sources, load
from provision.catalog.facts import facts_table
from provision.catalog.hardware import OTHER_MAKERS
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.platforms import PLATFORMS
from tests.conftest import SHARED_RECORDS

BUILDS = [
    pytest.param(release, source, build, id=f"{release.version}-{source}-{build.cuda}")
    for release in catalog.releases().values()
    for source in sources.names()
    for build in sources.by_name(source).builds(release)
]


def versions(expression: str) -> list[str]:
    return [release.version for release in catalog.matching_releases(expression)]


def ids(*args: object, **options: object) -> set[str]:
    return {rule.id for rule in catalog.matching_rules(*args, **options)}  # type: ignore[arg-type]


def wheel(version: str, tag: str) -> catalog.Build:
    return next(build for build in catalog.releases()[version].wheels if build.tag == tag)


def test_releases_cover_1_12_to_2_15_in_order() -> None:
    versions = list(catalog.releases())
    assert versions[0] == "1.12.0"
    assert versions[-1] == "2.15.0"
    assert versions == sorted(versions, key=catalog.version_key)
    assert len(versions) == 32


@pytest.mark.parametrize(("release", "source", "build"), BUILDS)
def test_every_build_fact_has_a_source(
    release: catalog.Release, source: str, build: catalog.Build
) -> None:
    for platform in build.platforms:
        platform_build = build.for_platform(platform)
        assert platform_build.source
        for fact in ("nccl", "cudnn", "triton", "architectures", "glibc", "python"):
            assert getattr(platform_build, fact) is None or getattr(
                platform_build, f"{fact}_source"
            ), f"{fact} on {platform}"
        assert not platform_build.python_seen or platform_build.python_source
        assert (platform_build.architectures is None) == (platform_build.ptx is None)


@pytest.mark.parametrize(("release", "source", "build"), BUILDS)
def test_driver_and_architectures_fit_the_toolkit(
    release: catalog.Release, source: str, build: catalog.Build
) -> None:
    key = catalog.version_key
    toolkit = catalog.toolkits()[build.cuda]
    assert toolkit.toolkit_driver
    assert key(toolkit.driver_floor) <= key(toolkit.toolkit_driver) or build.cuda == "11.0"
    names: set[str] = set()
    for platform in build.platforms:
        names.update(build.for_platform(platform).architectures or ())
    for name in names:
        capability = catalog.find_gpu(name).capability
        architecture = facts_table("cuda")["architectures"].get(name)
        assert capability >= key(toolkit.capability_min), name
        assert capability <= key(toolkit.capability_max or "99.0"), name
        if architecture:
            assert key(build.cuda) >= key(architecture["first_cuda"]["version"] or "0.0"), name
            assert key(build.cuda) <= key(architecture["last_cuda"]["version"] or "99.0"), name


@pytest.mark.parametrize(
    "release", catalog.releases().values(), ids=lambda release: release.version
)
def test_exactly_one_wheel_is_the_index_default(release: catalog.Release) -> None:
    (default,) = (build for build in release.wheels if build.on_pypi)
    assert release.index_default["linux-64"].build == default.tag
    for platform in PLATFORMS:
        named = release.index_default[platform].build
        assert named == "cpu" or platform in default.platforms


def test_newest_release_matches_its_wheel() -> None:
    build = wheel("2.15.0", "cu132")
    assert (build.nccl, build.cudnn, build.triton) == ("2.30.7", "9.26.0.51", "~=3.9.0")
    assert build.architectures == ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert build.ptx is False
    assert wheel("2.15.0", "cu130").architectures is None


def test_aarch64_cuda_wheels_start_at_2_11() -> None:
    defaults = {
        version: release.index_default["linux-aarch64"].build
        for version, release in catalog.releases().items()
    }
    assert {version for version, build in defaults.items() if build != "cpu"} == {
        "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0",
    }  # fmt: skip
    platform_build = wheel("2.15.0", "cu132").for_platform("linux-aarch64")
    assert platform_build.nccl == "2.30.7"
    assert "3.15" in (platform_build.python or ())


def test_aarch64_never_inherits_x86_64_architectures() -> None:
    default = wheel("2.14.1", "cu130")
    assert default.architectures == ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert default.for_platform("linux-aarch64").architectures == (
        "sm_80",
        "sm_90",
        "sm_100",
        "sm_110",
        "sm_120",
    )
    forge = next(build for build in catalog.releases()["2.6.0"].conda_forge if build.cuda == "12.6")
    platform_build = forge.for_platform("linux-aarch64")
    assert (platform_build.python, platform_build.python_seen, platform_build.architectures) == (
        None,
        ("3.11",),
        None,
    )


def test_row_without_source_is_refused() -> None:
    with pytest.raises(ValueError, match="x: nccl states version without a source"):
        check_sources({"nccl": {"version": "2.20.5", "source": None}}, "x")
    check_sources({"nccl": {"version": None, "source": None}}, "x")


@pytest.mark.parametrize(
    "name", ["releases.yml", "cuda.yml", "gpus.yml", "nccl.yml", "rules.yml", "cuda_packages.yml"]
)
def test_every_row_of_every_file_is_sourced(name: str) -> None:
    assert load(name)


def test_pytorch_channel_has_its_own_python_list() -> None:
    """Wheels of 2.0.0 exist for Python 3.11, the channel's packages do not."""
    (build,) = (item for item in catalog.releases()["2.0.0"].pytorch if item.cuda == "11.8")
    assert build.python == ("3.8", "3.9", "3.10")
    assert "3.11" in catalog.releases()["2.0.0"].python


def test_companions_are_facts_of_a_source() -> None:
    """For 2.0.0 the pytorch channel and the wheels differ; elsewhere what a row states is a fact of
    the channel's records.
    """
    pairs = {}
    for name in ("wheels", "pytorch", "conda-forge"):
        of_source = sources.by_name(name).companions(catalog.releases()["2.0.0"])
        pairs[name] = [(companion.name, companion.version) for companion in of_source]
    assert pairs == {
        "wheels": [("torchvision", "0.15.1"), ("torchaudio", "2.0.1")],
        "pytorch": [("torchvision", "0.15.0"), ("torchaudio", "2.0.0")],
        "conda-forge": [("torchvision", None), ("torchaudio", None)],
    }


@pytest.mark.skipif(not SHARED_RECORDS.is_dir(), reason="no copy of the channels' records")
def test_companions_of_the_pytorch_channel_are_those_of_its_records() -> None:
    text = (SHARED_RECORDS / "pytorch" / "linux-64" / "repodata.json").read_text()
    published: dict[tuple[str, str], set[str]] = {}
    for group in ("packages", "packages.conda"):
        for record in json.loads(text)[group].values():
            for depends in record["depends"]:
                name, _, version = depends.partition(" ")
                if name == "pytorch":
                    published.setdefault((version, record["name"]), set()).add(record["version"])
    channel = sources.by_name("pytorch")
    compared = 0
    for version, release in catalog.releases().items():
        for companion in channel.companions(release):
            if release.pytorch and (version, companion.name) in published:
                compared += 1
                assert companion.version in published[version, companion.name]
    assert compared > 15


# Expressions


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("2.3", ["2.3.0", "2.3.1"]),
        ("2.3.1", ["2.3.1"]),
        ("1", ["1.12.0", "1.12.1", "1.13.0", "1.13.1"]),
        (">=2.3,<2.5", ["2.3.0", "2.3.1", "2.4.0", "2.4.1"]),
        ("==2.4.*", ["2.4.0", "2.4.1"]),
        ("~=2.12.0", ["2.12.0", "2.12.1"]),
        (">2.14", ["2.14.1", "2.15.0"]),
        ("latest", ["2.15.0"]),
        (" 2.10 ", ["2.10.0"]),
    ],
)
def test_expressions(expression: str, expected: list[str]) -> None:
    assert versions(expression) == expected


@pytest.mark.parametrize("expression", ["2.3.1+cu121", "v2.3", "two", "", "2..3", ">=", "2.3.1.1"])
def test_invalid_expressions(expression: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a release"):
        versions(expression)


@pytest.mark.parametrize("expression", ["2.1.9", "1.11", "9", ">=3", "02.99"])
def test_unknown_releases(expression: str) -> None:
    with pytest.raises(NoSuchBuild, match=r"Known: 1\.12, .*newest is 2\.15\.0"):
        versions(expression)


# GPUs and drivers


@pytest.mark.parametrize(
    ("query", "architecture"),
    [
        ("sm_90", "sm_90"),
        ("sm_90a", "sm_90"),
        ("compute_100", "sm_100"),
        ("9.0", "sm_90"),
        ("12.1", "sm_121"),
        ("H100", "sm_90"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "sm_90"),
        ("NVIDIA H100 NVL", "sm_90"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("NVIDIA A100 80GB PCIe", "sm_80"),
        ("Tesla V100-SXM2-32GB", "sm_70"),
        ("Tesla T4", "sm_75"),
        ("NVIDIA L40S", "sm_89"),
        ("NVIDIA GeForce RTX 4090", "sm_89"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", "sm_86"),
        ("rtx-4090", "sm_89"),
        ("Quadro RTX 6000", "sm_75"),
        ("NVIDIA RTX A6000", "sm_86"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "sm_120"),
        ("NVIDIA B300 SXM6 AC", "sm_103"),
        ("NVIDIA GB10", "sm_121"),
        ("GTX 1080 Ti", "sm_61"),
        ("NVIDIA GeForce RTX 4090 D", "sm_89"),
        ("GRID A100-40C", "sm_80"),
        ("GRID A100-1-5CME", "sm_80"),
        ("NVIDIA A10-24Q", "sm_86"),
        ("NVIDIA GH200 144G HBM3e", "sm_90"),
        ("NVIDIA H20-3e", "sm_90"),
        ("NVIDIA H100L-2-24C", "sm_90"),
        ("GRID A100D-80C", "sm_80"),
        ("NVIDIA RTX A4500", "sm_86"),
        ("NVIDIA RTX A4500 Laptop GPU", "sm_86"),
        ("Tesla V100-SXM2-32GB-LS", "sm_70"),
        ("NVIDIA GeForce RTX 5090 D v2", "sm_120"),
        ("NVIDIA Thor", "sm_110"),
        ("Orin (nvgpu)", "sm_87"),
        ("Orin NX", "sm_87"),
        ("Jetson AGX Orin Developer Kit", "sm_87"),
        ("4090", "sm_89"),
        ("4090d", "sm_89"),
        ("a6000", "sm_86"),
        ("A100-80GB", "sm_80"),
        ("1080ti", "sm_61"),
        ("3090 ti", "sm_86"),
    ],
)
def test_gpus_are_found_by_common_and_nvidia_smi_names(query: str, architecture: str) -> None:
    assert catalog.find_gpu(query).architecture == architecture


@pytest.mark.parametrize(
    ("query", "close"),
    [("H10", "H100"), ("RTX 4095", "RTX 4090"), ("V1000", "V100"), ("rtx 6000", "RTX A6000")],
)
def test_unknown_gpu_is_refused_with_similar_names(query: str, close: str) -> None:
    with pytest.raises(
        InvalidSpec, match=rf"GPU '{query}' is not in the table.*NVIDIA GPUs only\..*{close}"
    ):
        catalog.find_gpu(query)


@pytest.mark.parametrize(
    ("query", "maker"),
    [
        ("mi300", "AMD"),
        ("MI300X", "AMD"),
        ("Instinct MI250X", "AMD"),
        ("Radeon RX 7900 XTX", "AMD"),
        ("rx7900", "AMD"),
        ("gfx942", "AMD"),
        ("Gaudi 3", "Intel"),
        ("Arc A770", "Intel"),
    ],
)
def test_gpus_of_other_makers_get_no_list_of_nvidia_names(query: str, maker: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        catalog.find_gpu(query)
    assert f"GPU '{query}' is made by {maker}" in str(caught.value)
    assert not any(name in str(caught.value) for name in catalog.gpus())


def test_no_nvidia_name_is_taken_for_another_makers() -> None:
    for name in catalog.gpus():
        assert not any(re.search(names, name.lower()) for names in OTHER_MAKERS.values()), name


def test_a_short_name_means_one_product_or_none() -> None:
    assert catalog.find_gpu("4090").name == "RTX 4090"
    assert catalog.find_gpu("4090d").name == "RTX 4090 D"
    for ambiguous in ("6000", "rtx6000", "rtx"):
        with pytest.raises(InvalidSpec):
            catalog.find_gpu(ambiguous)


def test_gpus_on_a_module_with_an_arm_cpu_have_one_platform() -> None:
    modules = [name for name in catalog.gpus() if "Jetson" in name]
    for name in (
        "GH200",
        "NVIDIA GH200 144G HBM3e",
        "GB200",
        "GB300",
        "GB10",
        "Orin",
        "Thor",
        *modules,
    ):
        assert catalog.find_gpu(name).platform == "linux-aarch64"
        assert catalog.find_gpu(name).platform_source
    assert catalog.find_gpu("H200").platform is catalog.find_gpu("B300").platform is None


@pytest.mark.parametrize("query", ["", "sm_", "sm_42", "4.2", "100", "NVIDIA", "9", "sm_9"])
def test_nonsense_is_not_a_gpu(query: str) -> None:
    if query == "100":  # a plain number means an architecture
        assert catalog.find_gpu(query).architecture == "sm_100"
    else:
        with pytest.raises(InvalidSpec):
            catalog.find_gpu(query)


@pytest.mark.parametrize(
    ("cuda", "driver", "answer"),
    [
        ("12.1", "535.129.03", "yes"),
        ("12.1", "535", "yes"),  # 12.1's own driver is 530, but 525.60.13 is enough
        ("12.8", "535", "yes"),
        ("12.1", "525", "unknown"),  # which driver of that branch is not said
        ("12.1", "525.60.13", "yes"),
        ("12.1", "525.60.12", "no"),
        ("12.1", "470.82", "no"),
        ("13.0", "575.57.08", "no"),
        ("13.2", "580.65.06", "yes"),
        ("13.0", "580", "yes"),  # NVIDIA's table names the branch
        ("13.5", "580", "yes"),
        ("13.0", "580.40", "no"),
        ("11.8", "450.80", "unknown"),
        ("99.0", "600", "unknown"),
    ],
)
def test_drivers(cuda: str, driver: str, answer: str) -> None:
    assert catalog.runs_on_driver(cuda, driver) == answer


def test_toolkit_without_a_known_driver_of_its_own_leaves_ptx_unknown() -> None:
    build = dataclasses.replace(wheel("2.9.1", "cu130"), cuda="13.5", ptx=True)
    newer = catalog.Gpu(name="sm_130", architecture="sm_130", source="made up")
    assert catalog.toolkits()["13.5"].toolkit_driver is None
    assert catalog.runs_on_gpu(build, newer, "700") == "unknown"
    assert catalog.runs_on_gpu(build, newer) == "ptx"


@pytest.mark.parametrize(
    ("version", "tag", "gpu", "driver", "answer"),
    [
        ("2.3.1", "cu121", "H100", None, "yes"),
        ("2.3.1", "cu121", "L40S", None, "yes"),  # sm_86 code runs on 8.9
        ("2.3.1", "cu121", "V100", None, "yes"),
        ("2.3.1", "cu121", "B200", None, "no"),  # no PTX in it
        ("2.7.0", "cu128", "V100", None, "no"),  # 2.7 left sm_70 out
        ("2.8.0", "cu128", "V100", None, "yes"),
        ("2.11.0", "cu128", "V100", None, "no"),
        ("2.14.1", "cu130", "GB10", None, "yes"),  # sm_120 code runs on 12.1
        ("2.14.1", "cu132", "sm_110", None, "no"),  # its PTX is of 12.0, which is newer
        ("2.15.0", "cu132", "H100", None, "yes"),
        ("2.15.0", "cu130", "H100", None, "unknown"),
        ("2.15.0", "cu130", "V100", None, "no"),  # CUDA 13 does not compile for it
        ("2.3.1", "cu121", "Jetson AGX Orin", None, "no"),  # no code for Tegra
    ],
)
def test_build_code_for_a_gpu(
    version: str, tag: str, gpu: str, driver: str | None, answer: str
) -> None:
    assert catalog.runs_on_gpu(wheel(version, tag), catalog.find_gpu(gpu), driver) == answer


@pytest.mark.parametrize(
    ("driver", "answer"),
    [(None, "ptx"), ("525.60.13", "ptx"), ("520.61.05", "no"), ("525", "unknown")],
)
def test_ptx_needs_the_driver_of_its_toolkit(driver: str | None, answer: str) -> None:
    forge = next(build for build in catalog.releases()["2.3.1"].conda_forge if build.cuda == "12.0")
    assert forge.ptx and forge.architectures and forge.architectures[-1] == "sm_90"
    assert catalog.runs_on_gpu(forge, catalog.find_gpu("B200"), driver) == answer


def test_normalized_gpu_names_are_distinct() -> None:
    for name, gpu in catalog.gpus().items():
        assert catalog.find_gpu(name) == gpu


# Rules


def test_rules_are_sourced_and_parse() -> None:
    for rule in catalog.rules():
        assert rule.reason and rule.source
        for specifier in (rule.torch, rule.cuda, rule.nccl, rule.python):
            SpecifierSet(specifier or "")
        assert (rule.consequence == "pin") == bool(rule.requirement), rule.id
        assert rule.consequence == "pin" or rule.advice, rule.id
        assert rule.torch or rule.nccl or rule.package or rule.channels or rule.through_ptx, (
            f"{rule.id} has no condition"
        )
    assert len({rule.id for rule in catalog.rules()}) == len(catalog.rules())


def test_every_rule_can_apply() -> None:
    everything: set[str] = set()
    names = {"nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "cuda-compat-12-4"} | {
        rule.package for rule in catalog.rules() if rule.package and "*" not in rule.package
    }
    for release in catalog.releases().values():
        for source in sources.names():
            for build in sources.by_name(source).builds(release):
                for nccl in (None, "2.17.1", "2.25.1", "2.29.2"):
                    everything |= ids(
                        release, build, source, nccl=nccl, packages=names, channels=["conda-forge", "pytorch"],
                        through_ptx=True,
                    )  # fmt: skip
    assert everything == {rule.id for rule in catalog.rules()}


def test_rules_apply_only_where_they_should() -> None:
    old, mid, new = (catalog.releases()[version] for version in ("2.0.1", "2.3.1", "2.15.0"))
    assert ids(old, wheel("2.0.1", "cu118"), "wheels") == {
        "numpy-1",
        "setuptools-pkg-resources",
        "nccl-differs-by-index",
    }
    assert ids(mid, mid.pytorch[1], "pytorch") == {
        "numpy",
        "setuptools-82",
        "mkl-iomp",
        "blas-is-mkl",
        "libcurand-of-cuda-12.5",
        "libcufile-of-cuda-12.5",
        "cuda-opencl-of-cuda-12.5",
        "cuda-graph-hang",
    }
    assert ids(new, wheel("2.15.0", "cu132"), "wheels") == {"numpy"}
    assert ids(new, None, "wheels") == {"numpy"}


def test_package_rules_accept_all_spellings() -> None:
    release, build = catalog.releases()["2.9.1"], wheel("2.9.1", "cu128")
    assert "nccl-family-cu13" in ids(release, build, "wheels", packages=["nvidia_nccl.CU13"])
    assert "nccl-family-cu12-on-13" not in ids(
        release, build, "wheels", packages=["nvidia-nccl-cu12"]
    )
    assert "nccl-family-cu13" not in ids(release, None, "wheels", packages=["nvidia-nccl-cu13"])
    assert "distributed" in ids(release, build, "wheels", packages=["Distributed"])


def test_channel_order_matters_only_as_listed() -> None:
    release = catalog.releases()["2.3.1"]
    assert "channel-order" in ids(
        release, release.pytorch[0], "pytorch", channels=["conda-forge", "pytorch"]
    )
    assert "channel-order" not in ids(
        release, release.pytorch[0], "pytorch", channels=["pytorch", "nvidia", "conda-forge"]
    )
    assert "channel-order" not in ids(
        release, release.pytorch[0], "pytorch", channels=["conda-forge"]
    )


def test_torchaudio_ends_with_2_11() -> None:
    audio = {}
    for version, release in catalog.releases().items():
        audio[version] = release.companions[1].version
    assert audio["2.3.1"] == "2.3.1"
    assert audio["1.13.1"] == "0.13.1"
    assert audio["2.11.0"] == "2.11.0"
    assert audio["2.12.0"] is None
