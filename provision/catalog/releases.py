"""PyTorch releases and their builds, and the expressions by which releases are asked for."""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provision.catalog.loading import load
from provision.catalog.versions import minor, version_key
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.types import PLATFORM, Platform

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

LATEST = "latest"
NOT_KNOWN = {"version": None, "requirement": None, "sm": None, "ptx": None, "source": None}


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build of a release from one source, as it is for linux-64; `on` tells what is known of it for another platform.

    None means that no source says; it is never read as absent. A source field is None where its fact is.
    """

    tag: str  # cu121 for wheels; the build string or the CUDA version for conda sources
    cuda: str
    on_pypi: bool  # what the package index serves as plain torch==V
    platforms: tuple[Platform, ...]
    nccl: str | None
    nccl_is_package: bool  # NCCL is a package of its own that can be seen and pinned
    nccl_floor: str | None  # conda-forge: the oldest NCCL that the build accepts
    nccl_source: str | None
    cudnn: str | None
    cudnn_floor: str | None  # conda-forge: the oldest cuDNN that the build accepts
    cudnn_source: str | None
    triton: str | None  # a specifier such as ==3.1.0 or ~=3.9.0; "none" where it needs no triton
    triton_source: str | None
    architectures: tuple[str, ...] | None  # GPU code in the build; sm_90 runs on 9.x only
    ptx: bool | None  # it also holds PTX of the last architecture, which newer GPUs can compile
    architectures_source: str | None
    glibc: str | None
    glibc_source: str | None
    python: tuple[str, ...] | None  # all Pythons that it was built for
    python_seen: tuple[str, ...]  # where `python` is not known: those that are known to exist
    python_source: str | None
    specs: tuple[str, ...]  # conda requirements that select this build; empty for wheels
    source: str
    free_threaded: tuple[
        str, ...
    ] = ()  # Pythons without a global lock that it was also built for: 3.13t
    channels: tuple[
        str, ...
    ] = ()  # of the pytorch channel's builds: where they and their CUDA lie, in order of priority
    channels_source: str | None = None
    elsewhere: dict[Platform, dict[str, Any]] = field(
        default_factory=dict, repr=False, compare=False
    )  # what differs by platform

    def on(self, platform: Platform) -> Build:
        """The same build for another platform. Architectures are not known there unless a source says so for that platform."""
        assert platform in self.platforms, f"{self.tag} has no {platform}"
        return (
            self if platform == PLATFORM else dataclasses.replace(self, **self.elsewhere[platform])
        )


@dataclass(frozen=True, kw_only=True)
class IndexDefault:
    """What a package index serves as plain `torch==V` on one platform."""

    build: str  # the tag of one of `Release.wheels`, or cpu
    toolkit: str | None  # the exact CUDA toolkit, where the wheel pins one
    python: tuple[str, ...]
    free_threaded: tuple[str, ...]  # 3.13t
    python_source: str
    glibc: str
    glibc_source: str
    source: str
    architectures: tuple[str, ...] | None = (
        None  # stated here where it is not the platform for which `wheels` states them
    )
    ptx: bool | None = None
    architectures_source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """One PyTorch release and what goes with it."""

    version: str
    index_default: dict[Platform, IndexDefault]
    torchvision: str | None
    companions_python: (
        tuple[str, ...] | None
    )  # Python versions that torchvision (and torchaudio) have wheels for, where fewer than torch
    torchvision_source: str
    torchaudio: str | None
    torchaudio_pins_torch: (
        bool  # false: it runs with several torch releases, and is no longer made for each
    )
    torchaudio_source: str
    wheels: tuple[Build, ...]
    pytorch: tuple[Build, ...]
    conda_forge: tuple[Build, ...]
    pytorch_source: str  # where it is known from which builds the pytorch channel has
    conda_forge_source: str
    unlisted: dict[
        str, str
    ]  # CUDA of wheels that were seen built but are not part of the release -> what is known of them

    @property
    def minor(self) -> str:
        return minor(self.version)

    @property
    def python(self) -> tuple[str, ...]:
        """Pythons that the index's wheels are built for."""
        return self.index_default[PLATFORM].python

    @property
    def python_source(self) -> str:
        return self.index_default[PLATFORM].python_source

    @property
    def companion_audio(self) -> str | None:
        """The torchaudio of this release; later releases have none (pytorch/audio#4212), only an old one that still runs."""
        mine = self.torchaudio and (
            self.torchaudio_pins_torch or minor(self.torchaudio) == self.minor
        )
        return self.torchaudio if mine else None


@functools.cache
def releases() -> dict[str, Release]:
    """All releases of the table, oldest first."""
    table = {version: _release(version, row) for version, row in load("releases.yml").items()}
    return dict(sorted(table.items(), key=lambda item: version_key(item[0])))


def matching_releases(asked: str) -> tuple[Release, ...]:
    """Releases that an expression means, oldest first: 2 (every 2.x), 2.3 (every 2.3.x), 2.3.1, a PEP 440 range such as
    `>=2.3,<2.6`, or latest. Raises InvalidSpec for what is none of these, NoSuchBuild where the table has no such release."""
    found = _matching(asked.strip())
    if found:
        return found
    known = sorted({release.minor for release in releases().values()}, key=version_key)
    raise NoSuchBuild(
        f"torch {asked} is not in the table of known releases.",
        advice=f"Known: {', '.join(known)}; newest is {list(releases())[-1]}.",
    )


def covers_minor(asked: str, minor: str) -> bool:
    """Whether an expression means all of a minor release, those of its patches included that are still to come. `latest` means the
    newest there is, as a minor release by number does."""
    asked = asked.strip()
    if asked == LATEST:
        return True
    if re.fullmatch(r"\d+(\.\d+){0,2}", asked):
        return version_key(minor)[: len(version_key(asked))] == version_key(asked)
    patches = [version for version in releases() if version.startswith(f"{minor}.")]
    return all(_range(asked).contains(version) for version in (*patches, f"{minor}.99"))


def _matching(asked: str) -> tuple[Release, ...]:
    table = releases()
    if asked == LATEST:
        return (list(table.values())[-1],)
    if re.fullmatch(r"\d+(\.\d+){0,2}", asked):
        parts = tuple(map(int, asked.split(".")))
        return tuple(
            release
            for version, release in table.items()
            if version_key(version)[: len(parts)] == parts
        )
    return tuple(release for version, release in table.items() if _range(asked).contains(version))


@functools.cache
def _range(asked: str) -> SpecifierSet:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(asked or "nothing")
    except InvalidSpecifier as error:
        raise InvalidSpec(
            f"torch {asked!r} is not a release.",
            advice="Write 2, 2.3, 2.3.1, a range such as '>=2.3,<2.6', or latest; CUDA is asked for by itself (--cuda 12.1).",
        ) from error


def _release(version: str, row: dict[str, Any]) -> Release:
    defaults: dict[Platform, IndexDefault] = {
        platform: _default(one) for platform, one in row["index_default"].items()
    }
    return Release(
        version=version,
        index_default=defaults,
        torchvision=row["torchvision"]["version"],
        companions_python=tuple(row["torchvision"]["python"])
        if "python" in row["torchvision"]
        else None,
        torchvision_source=row["torchvision"]["source"],
        torchaudio=row["torchaudio"]["version"],
        torchaudio_pins_torch=row["torchaudio"]["pins_torch"],
        torchaudio_source=row["torchaudio"]["source"],
        wheels=tuple(_wheel(tag, build, row, defaults) for tag, build in row["wheels"].items()),
        pytorch=tuple(
            _channel_build(cuda, build, row)
            for cuda, build in row["pytorch_channel"]["cuda"].items()
        ),
        conda_forge=tuple(
            _forge_build(cuda, build) for cuda, build in row["conda_forge"]["cuda"].items()
        ),
        pytorch_source=row["pytorch_channel"]["source"],
        conda_forge_source=row["conda_forge"]["source"],
        unlisted={
            f"{tag[2:-1]}.{tag[-1]}": f"{one['note']} ({one['source']})"
            for tag, one in row.get("unlisted_wheels", {}).items()
        },
    )


def _default(row: dict[str, Any]) -> IndexDefault:
    compiled = row.get("architectures", NOT_KNOWN)
    return IndexDefault(
        build=row["build"],
        toolkit=row["toolkit"],
        python=tuple(row["python"]["versions"]),
        free_threaded=tuple(row["python"]["free_threaded"]),
        python_source=row["python"]["source"],
        glibc=row["glibc"]["minimum"],
        glibc_source=row["glibc"]["source"],
        source=row["source"],
        architectures=None if compiled["sm"] is None else tuple(compiled["sm"]),
        ptx=compiled["ptx"],
        architectures_source=compiled["source"],
    )


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """The facts that every build has, known or not."""
    sm = row["architectures"]["sm"]
    versions = row["python"]["versions"]
    return {
        "nccl": row["nccl"]["version"],
        "nccl_floor": row["nccl"].get("floor"),
        "nccl_source": row["nccl"]["source"],
        "cudnn": row["cudnn"]["version"],
        "cudnn_floor": row["cudnn"].get("floor"),
        "cudnn_source": row["cudnn"]["source"],
        "architectures": None if sm is None else tuple(sm),
        "ptx": row["architectures"]["ptx"],
        "architectures_source": row["architectures"]["source"],
        "glibc": row["glibc"]["minimum"],
        "glibc_source": row["glibc"]["source"],
        "python": None if versions is None else tuple(versions),
        "python_seen": tuple(row["python"].get("seen", ())),
        "python_source": row["python"]["source"],
    }


def _wheel(
    tag: str, build: dict[str, Any], row: dict[str, Any], defaults: dict[Platform, IndexDefault]
) -> Build:
    others = {
        platform: default
        for platform, default in defaults.items()
        if platform != PLATFORM and default.build == tag
    }
    triton = (
        row["triton"] if build["on_pypi"] else NOT_KNOWN
    )  # the wheel that was read is the index's default
    return Build(
        tag=tag,
        cuda=build["cuda"],
        on_pypi=build["on_pypi"],
        platforms=(PLATFORM, *others),
        nccl_is_package=build["nccl"]["linkage"] == "nvidia-nccl wheel",
        triton=triton["requirement"],
        triton_source=triton["source"],
        specs=(),
        source=build["source"],
        free_threaded=defaults[PLATFORM].free_threaded,
        elsewhere={platform: _wheel_elsewhere(default) for platform, default in others.items()},
        **_facts(
            {
                "glibc": row["index_default"][PLATFORM]["glibc"],
                **build,
                "python": row["index_default"][PLATFORM]["python"],
            }
        ),
    )


def _wheel_elsewhere(default: IndexDefault) -> dict[str, Any]:
    """The wheel's requirements are the same on both machines (the refresh of the data checks it); what it was compiled for is not."""
    return {
        "source": default.source,
        "architectures": default.architectures,
        "ptx": default.ptx,
        "architectures_source": default.architectures_source,
        "glibc": default.glibc,
        "glibc_source": default.glibc_source,
        "python": default.python,
        "free_threaded": default.free_threaded,
        "python_source": default.python_source,
    }


def _channel_build(cuda: str, build: dict[str, Any], row: dict[str, Any]) -> Build:
    return Build(
        tag=build["build_string"],
        cuda=cuda,
        on_pypi=False,
        platforms=(PLATFORM,),
        nccl_is_package=False,
        triton=build["triton"]["requirement"],
        triton_source=build["triton"]["source"],
        specs=(build["selector"],),
        source=row["pytorch_channel"]["source"],
        channels=tuple(build["channels"]),
        channels_source=build.get("channels_source", row["pytorch_channel"]["source"]),
        **_facts(build),
    )


def _forge_build(cuda: str, build: dict[str, Any]) -> Build:
    others: tuple[Platform, ...] = tuple(
        platform for platform in ("linux-aarch64",) if platform in build
    )
    return Build(
        tag=cuda,
        cuda=cuda,
        on_pypi=False,
        platforms=(PLATFORM, *others),
        nccl_is_package=True,
        triton=build["triton"]["requirement"],
        triton_source=build["triton"]["source"],
        specs=tuple(build["specs"]),
        source=build["source"],
        elsewhere={
            platform: {**_facts(build[platform]), "source": build[platform]["source"]}
            for platform in others
        },
        **_facts(build),
    )
