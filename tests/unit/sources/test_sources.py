"""Sources of builds: what each must answer, and that a new one needs its own module and a place in
the registry."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from provision import catalog, lockfile, render, resolver, sources
from provision.adapters import conda
from provision.catalog import Build, Release
from provision.core.errors import CheckFailed, InvalidSpec, NoSuchBuild
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.core.types import LockedPackage, Pin
from provision.resolver import spec
from provision.resolver.table import build_table, parse_query
from provision.sources.base import Candidate
from provision.sources.conda_channel import CondaChannelSource, cuda_of_build_string
from tests.records import alias, make_channel, record


class LabChannel(CondaChannelSource):
    """A made-up conda channel with one build of torch 2.3.1, for a CUDA version that no other
    source has."""

    name = "lab"
    title = "the lab's channel"

    def builds(self, release: Release) -> tuple[Build, ...]:
        if release.version != "2.3.1":
            return ()
        build = dataclasses.replace(
            release.conda_forge[0],
            tag="cuda122*",
            cuda="12.2",
            platforms=("linux-64",),
            specs=(),
            source="the lab's build log",
            by_platform={},
        )
        return (build,)

    def origin(self, release: Release) -> str:
        return "the lab's build log"

    def preference(self, candidate: Candidate, platforms: Sequence[Platform]) -> tuple[int, str]:
        return 4, "only the lab has it"

    def torch_pins(self, candidate: Candidate, spec: Spec) -> Iterator[Pin]:
        build_string = candidate.build.tag if candidate.build else "cpu*"
        yield Pin(
            manager="conda",
            requirement=f"lab::pytorch={candidate.release.version}={build_string}",
            reason="build string pinned",
            source=candidate.origin,
        )


CACHES = (
    sources.candidates,
    sources.candidates_of,
)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[LabChannel]:
    source = LabChannel()
    monkeypatch.setattr(sources, "REGISTRY", (*sources.REGISTRY, source))
    for cached in CACHES:
        cached.cache_clear()
    yield source
    monkeypatch.undo()
    for cached in CACHES:
        cached.cache_clear()


def request(**options: object) -> Spec:
    return spec.combine({}, {"torch": "2.3", **options}, name="")


def test_names_and_titles_are_unique() -> None:
    assert len(set(sources.names())) == len(sources.REGISTRY)
    assert len({source.title for source in sources.REGISTRY}) == len(sources.REGISTRY)
    assert sources.AUTO not in sources.names()


@pytest.mark.parametrize("name", sources.names())
def test_every_source_cites_its_facts(name: str) -> None:
    source = sources.by_name(name)
    for release in catalog.releases().values():
        assert source.origin(release)
        assert all(build.source for build in source.builds(release))


@pytest.mark.parametrize(
    "build_string,name,cuda,is_so",
    [
        ("py3.11_cuda12.1_cudnn8.9.2_0", "pytorch", "12.1", True),
        ("py3.11_cuda12.1_cudnn8.9.2_0", "pytorch", "12", False),
        ("py3.11_cpu_0", "pytorch", None, True),
        ("py3.11_cuda12.1_cudnn8.9.2_0", "pytorch", None, False),
        ("cuda126_mkl_py311_h1_304", "conda-forge", "12.6", True),
        ("cuda126_mkl_py311_h1_304", "conda-forge", "12", False),
        ("cpu_mkl_py311_h1_104", "conda-forge", None, True),
    ],
)
def test_build_strings_contain_the_cuda_version(
    build_string: str, name: str, cuda: str | None, is_so: bool
) -> None:
    assert sources.by_name(name).is_build_string_of(build_string, cuda) is is_so


def test_unregistered_source_is_refused_listing_the_known() -> None:
    with pytest.raises(
        InvalidSpec, match="`source` must be one of auto, wheels, pytorch, conda-forge, not `lab`"
    ):
        request(cuda="12.2", source="lab")
    with pytest.raises(NoSuchBuild):
        resolver.resolve(request(cuda="12.2"))


def test_new_source_is_resolved_explained_and_listed(lab: LabChannel) -> None:
    for name in ("auto", "lab"):
        resolution = resolver.resolve(request(cuda="12.2", source=name))
        assert (resolution.source, resolution.torch, resolution.cuda) == ("lab", "2.3.1", "12.2")
        assert resolution.channels == ("lab", "conda-forge")
        assert resolution.spec.name == "torch2.3-cuda12.2-py311"
    explanation = resolver.explain(request(cuda="12.2"))
    assert {row.what: row.value for row in explanation.choices}["source"] == "lab"
    rows = build_table(parse_query({"source": ("lab",), "unknown": True})).cells
    assert [(row.torch, row.source, row.cuda) for row in rows] == [("2.3.1", "lab", "12.2")]
    with pytest.raises(NoSuchBuild, match=r"`--torch 2\.3 --cuda 12\.2 --source lab`"):
        resolver.resolve(request(cuda="12.3", source="lab"))


def test_new_source_is_rendered_locked_and_guarded(lab: LabChannel, tmp_path: Path) -> None:
    """A real solve against a channel in a folder."""
    resolution = resolver.resolve(
        request(
            cuda="12.2",
            source="lab",
            companions=False,
            jupyter=False,
            fast_checkpoints=False,
        )
    )
    texts = render.render_inputs(resolution)
    assert "lab::pytorch=2.3.1=cuda122*" in texts[render.ENVIRONMENT]
    inputs = lockfile.read_inputs(
        texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], tmp_path
    )
    make_channel(
        tmp_path / "lab",
        {
            "linux-64": [
                record("pytorch", "2.3.1", "cuda122_py311_0", depends=["python 3.11.*", "__cuda"]),
                record("pytorch", "2.3.1", "cpu_py311_0", depends=["python 3.11.*"]),
            ]
        },
    )
    needed = [
        record(conda.spec_name(pin.requirement), "68", "py_0")
        for pin in resolution.pins
        if conda.spec_name(pin.requirement) not in ("python", "pytorch")
    ]
    make_channel(
        tmp_path / "conda-forge", {"linux-64": [record("python", "3.11.7")], "noarch": needed}
    )
    packages = lockfile.solve(inputs, resolution, solver=conda.Solver(alias(tmp_path)))
    torch = next(package for package in packages if package.name == "pytorch")
    assert (torch.version, torch.build) == ("2.3.1", "cuda122_py311_0")

    text, lock = lockfile.compose(tmp_path / lockfile.FILE, inputs, packages, python_from="channel")
    (tmp_path / lockfile.FILE).write_text(text)
    assert lockfile.read(tmp_path / lockfile.FILE) == lock
    assert lock.channels == ("lab", "conda-forge")

    on_cpu = [
        dataclasses.replace(package, build="cpu_py311_0") if package is torch else package
        for package in packages
    ]
    with pytest.raises(CheckFailed, match=r"request is for CUDA 12\.2.*another one"):
        lockfile.guard(on_cpu, resolution)


def test_code_never_compares_source_names() -> None:
    """What differs between sources is a method of the source."""
    package = Path(sources.__file__).parent.parent
    for path in package.rglob("*.py"):
        if path.parent.name == "sources":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                for operand in (node.left, *node.comparators):
                    is_name = isinstance(operand, ast.Constant) and operand.value in sources.names()
                    assert not is_name, f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "build,cuda",
    [
        ("cuda126_mkl_py311_h1_304", "126"),
        ("cuda112py38h5fd6a17_1", "112"),
        ("py3.11_cuda12.1_cudnn8.9.2_0", "121"),
        ("py311_cu121", "121"),
        ("py311_cpu", ""),
        ("cpu_generic_h970a1ee_1", ""),
        ("py38", None),
        ("cuda_py311_h6d7aab5_0", None),
    ],
)
def test_build_strings_say_their_cuda(build: str, cuda: str | None) -> None:
    """Build strings of conda-forge and of the pytorch channel."""
    assert cuda_of_build_string(build) == cuda


@pytest.mark.parametrize("name", ["libtorch", "torchvision", "torchaudio"])
def test_a_library_of_another_flavor_is_refused(name: str) -> None:
    """Some records of conda-forge let a solver combine them."""
    cuda = resolver.resolve(Spec(name="x", torch="2.6", cuda="12.6", source="conda-forge"))
    cpu = resolver.resolve(Spec(name="x", torch="2.6", cuda=None, source="conda-forge"))
    right = "cuda126_generic_py311_h1_200"
    for resolution, torch_build, same, other in (
        (cuda, right, "cuda126_py311_h2_0", "cpu_py311_h2_0"),
        (cuda, right, "cuda126_py311_h2_0", "cuda129_py311_h2_0"),
        (cpu, "cpu_mkl_py311_h1_100", "cpu_py311_h2_0", "cuda126_py311_h2_0"),
    ):
        torch = conda_package("pytorch", resolution.torch, torch_build)
        lockfile.guard([torch, conda_package(name, "1.0", same)], resolution)
        with pytest.raises(CheckFailed, match=f"the locked {name} 1.0 is another build"):
            lockfile.guard([torch, conda_package(name, "1.0", other)], resolution)


def conda_package(name: str, version: str, build: str) -> LockedPackage:
    return LockedPackage(
        manager="conda", name=name, version=version, build=build, url="x", sha256="a"
    )


@pytest.mark.parametrize(
    ("requirement", "keeps_ours"),
    [
        ("cuda-version=12.8", False),
        ("cuda-version ==12.8", False),
        ("cuda-version 12.8.*", False),
        ("conda-forge::cuda-version=12.8", False),
        ("cuda-version=12.6", True),
        ("cuda-version>=12.6", True),  # leaves the version open
        ("cuda-version-extra=12.8", True),
    ],
)
def test_request_may_name_another_minor_version_of_the_cuda_libraries(
    requirement: str, keeps_ours: bool
) -> None:
    options = {"torch": "2.6", "cuda": "12.6", "source": "conda-forge", "conda": [requirement]}
    resolution = resolver.resolve(spec.combine({}, options, name=""))
    ours = [pin.requirement for pin in resolution.pins if pin.source != "spec.yml"]
    assert ("cuda-version=12.6" in ours) == keeps_ours
    assert "pytorch=2.6.0=cuda126*" in ours
