"""The facts: which PyTorch builds exist, of what, and what a rule says about them. Loads and checks data/ once, at first use."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.model import BuildSource

DATA = Path(__file__).parent / "data"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build of a release from one source. None means that no source says; it is never read as absent."""

    tag: str  # cu121 for wheels; the CUDA version for conda sources
    cuda: str
    on_pypi: bool
    nccl: str | None
    nccl_is_package: bool  # NCCL is a package of its own that can be seen and pinned
    cudnn: str | None
    architectures: tuple[str, ...]
    glibc: str
    python: tuple[str, ...]
    specs: tuple[str, ...]  # conda requirements that select this build; empty for wheels
    source: str
    nccl_source: str | None
    python_source: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """One PyTorch release and what goes with it."""

    version: str
    torchvision: str | None
    companions_python: tuple[str, ...] | None  # Python versions that torchvision (and torchaudio) have wheels for, where fewer than torch
    torchvision_source: str
    torchaudio: str | None
    torchaudio_pins_torch: bool  # false: it runs with several torch releases, and is no longer made for each
    torchaudio_source: str
    wheels: tuple[Build, ...]
    pytorch: tuple[Build, ...]
    conda_forge: tuple[Build, ...]
    conda_sources: dict[str, str]

    @property
    def minor(self) -> str:
        return minor(self.version)

    @property
    def companion_audio(self) -> str | None:
        """The torchaudio of this release; later releases have none (pytorch/audio#4212), only an old one that still runs."""
        mine = self.torchaudio and (self.torchaudio_pins_torch or minor(self.torchaudio) == self.minor)
        return self.torchaudio if mine else None

    def builds(self, source: BuildSource) -> tuple[Build, ...]:
        by_source: dict[BuildSource, tuple[Build, ...]] = {
            "wheels": self.wheels,
            "pytorch": self.pytorch,
            "conda-forge": self.conda_forge,
        }
        return by_source[source]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A requirement that holds for a range of torch versions."""

    id: str
    torch: str
    sources: tuple[str, ...]
    requirement: str
    reason: str
    source: str


def load(name: str) -> Any:
    """A data file, parsed."""
    import yaml

    content = yaml.load((DATA / name).read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    _check_sources(content, name)
    return content


def _check_sources(content: Any, where: str) -> None:
    """Every row that states a version or a requirement says where that was read; a row without is a mistake of ours."""
    if isinstance(content, list):
        for index, row in enumerate(content):
            _check_sources(row, f"{where}[{index}]")
    elif isinstance(content, dict):
        states = content.keys() & {"version", "requirement", "driver_floor", "index_path"}
        if any(content[key] is not None for key in states) and not content.get("source"):
            raise ValueError(f"{where} states {', '.join(sorted(states))} without a source")
        for key, row in content.items():
            _check_sources(row, f"{where}: {key}")


@functools.cache
def releases() -> dict[str, Release]:
    """All releases of the table, oldest first."""
    table = {version: _release(version, row) for version, row in load("releases.yml").items()}
    return dict(sorted(table.items(), key=lambda item: version_key(item[0])))


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of the file."""
    return tuple(Rule(**{**row, "sources": tuple(row["sources"])}) for row in load("rules.yml"))


@functools.cache
def driver_floors() -> dict[str, tuple[str, str]]:
    """CUDA version -> (oldest Linux x86_64 driver that runs it, source)."""
    toolkits = load("cuda.yml")["toolkits"]
    return {version: (row["driver_floor"], row["source"]) for version, row in toolkits.items()}


def minor(version: str) -> str:
    """2.3 of 2.3.1."""
    return ".".join(version.split(".")[:2])


def version_key(version: str) -> tuple[int, ...]:
    """Numeric order for versions made of numbers and dots: 2.10 after 2.9."""
    return tuple(int(part) for part in version.split("."))


def _release(version: str, row: dict[str, Any]) -> Release:
    return Release(
        version=version,
        torchvision=row["torchvision"]["version"],
        companions_python=tuple(row["torchvision"]["python"]) if "python" in row["torchvision"] else None,
        torchvision_source=row["torchvision"]["source"],
        torchaudio=row["torchaudio"]["version"],
        torchaudio_pins_torch=row["torchaudio"]["pins_torch"],
        torchaudio_source=row["torchaudio"]["source"],
        wheels=tuple(_wheel(tag, build, row["python"]) for tag, build in row["wheels"].items()),
        pytorch=tuple(_channel_build(cuda, row) for cuda in row["pytorch_channel"]["cuda"]),
        conda_forge=tuple(_forge_build(cuda, build, row["python"]) for cuda, build in row["conda_forge"]["cuda"].items()),
        conda_sources={"pytorch": row["pytorch_channel"]["source"], "conda-forge": row["conda_forge"]["source"]},
    )


def _wheel(tag: str, build: dict[str, Any], python: dict[str, Any]) -> Build:
    return Build(
        tag=tag,
        cuda=build["cuda"],
        on_pypi=build["on_pypi"],
        nccl=build["nccl"]["version"],
        nccl_is_package=build["nccl"]["linkage"] == "nvidia-nccl wheel",
        cudnn=build["cudnn"]["version"],
        architectures=tuple(build["architectures"]["sm"] or ()),
        glibc=build["glibc"]["minimum"],
        python=tuple(python["versions"]),
        specs=(),
        source=build["source"],
        nccl_source=build["nccl"]["source"],
        python_source=python["source"],
    )


def _channel_build(cuda: str, row: dict[str, Any]) -> Build:
    channel = row["pytorch_channel"]
    build = channel["cuda"][cuda]
    return Build(
        tag=build["build_string"],
        cuda=cuda,
        on_pypi=False,
        nccl=channel["nccl"]["by_cuda"].get(cuda),
        nccl_is_package=False,
        cudnn=None,
        architectures=(),
        glibc="2.17",
        python=tuple(channel["python"] or row["python"]["versions"]),
        specs=(build["selector"],),
        source=channel["source"],
        nccl_source=channel["nccl"]["source"],
        python_source=channel["source"],
    )


def _forge_build(cuda: str, build: dict[str, Any], python: dict[str, Any]) -> Build:
    return Build(
        tag=cuda,
        cuda=cuda,
        on_pypi=False,
        nccl=None,
        nccl_is_package=True,
        cudnn=None,
        architectures=(),
        glibc="2.17",
        python=tuple(build["python"] or python["versions"]),
        specs=tuple(build["specs"]),
        source=build["source"],
        nccl_source=None,
        python_source=build["source"],
    )
