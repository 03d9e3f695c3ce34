"""PyTorch releases and their builds, and the expressions that select releases."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from functools import cache
from itertools import starmap
from typing import Any, Literal

from provision.catalog.facts import cached, edition, facts_table
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.platforms import PLATFORM, Platform

LATEST = "latest"
Library = Literal["nccl", "cudnn"]
_NUMBERS = re.compile(r"\d+(\.\d+){0,2}(\.dev\d+)?")
# A release or a minor release by number.
EXACT = re.compile(r"\d+\.\d+(\.\d+)?")
UNKNOWN = {"version": None, "requirement": None, "sm": None, "ptx": None, "source": None}


@frozen
class Build:
    """One build of a release from one source, for linux-64; `for_platform` gives it for another
    platform.

    None means that no source says; it never means absent. A source field is None where its fact is.
    """

    tag: str  # cu121 for wheels; the build string or the CUDA version for conda sources
    cuda: str
    on_pypi: bool  # what the package index serves as plain torch==V
    platforms: tuple[Platform, ...]
    nccl: str | None
    nccl_is_package: bool  # NCCL is a separate package, which can be pinned
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
    python_seen: tuple[str, ...]  # if `python` is not known: those that certainly exist
    python_source: str | None
    specs: tuple[str, ...]  # conda requirements that select this build; empty for wheels
    source: str
    # Pythons without a global lock that it was also built for: 3.13t.
    free_threaded: tuple[str, ...] = ()
    # Where a build of the pytorch channel and its CUDA are, in order of priority.
    channels: tuple[str, ...] = ()
    # The fields that differ, by platform.
    by_platform: dict[Platform, dict[str, Any]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def library(self, name: Library) -> tuple[str | None, str | None]:
        """The version of NCCL or cuDNN, and the source of that."""
        if name == "nccl":
            return self.nccl, self.nccl_source
        return self.cudnn, self.cudnn_source

    def for_platform(self, platform: Platform) -> Build:
        """The same build for another platform. Architectures are not known there unless a source
        says so for that platform."""
        assert platform in self.platforms, f"{self.tag} has no {platform}"
        if platform == PLATFORM:
            return self
        return replace(self, **self.by_platform[platform])


@frozen
class IndexDefault:
    """What a package index serves as plain `torch==V` on one platform."""

    build: str  # the tag of one of `Release.wheels`, or cpu
    python: tuple[str, ...]
    python_source: str
    source: str


@frozen
class Companion:
    """torchvision or torchaudio as a source pairs it with a release; None: it has none, or, without a
    source, none is known."""

    name: str
    version: str | None
    source: str


@frozen
class Release:
    """One PyTorch release and what goes with it."""

    version: str
    index_default: dict[Platform, IndexDefault]
    # torchvision and torchaudio among the wheels.
    companions: tuple[Companion, ...]
    torchaudio_pins_torch: bool  # False: it runs with several torch releases
    # Pythons for which they have wheels, if fewer than torch has.
    companions_python: tuple[str, ...] | None
    wheels: tuple[Build, ...]
    pytorch: tuple[Build, ...]
    pytorch_companions: tuple[Companion, ...]  # as the pytorch channel pairs them, if differently
    conda_forge: tuple[Build, ...]
    pytorch_source: str  # the source of the list of builds on the pytorch channel
    conda_forge_source: str
    # Only a package index says something of it.
    from_index: bool = False

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


@cached
def releases() -> dict[str, Release]:
    """All releases of the table by version, oldest first."""
    rows = facts_table("releases")
    return {version: _release(version, rows[version]) for version in sorted(rows, key=version_key)}


def matching_releases(expression: str) -> tuple[Release, ...]:
    """Releases that an expression selects, oldest first: 2 (every 2.x), 2.3 (every 2.3.x), 2.3.1, a
    PEP 440 range such as `>=2.3,<2.6`, or latest.

    Raises InvalidSpec for any other form, NoSuchBuild if the table has no matching release.
    """
    table = releases()
    expression = expression.strip()
    if expression == LATEST:
        return ([release for release in table.values() if ".dev" not in release.version][-1],)
    if expression in table:
        return (table[expression],)
    selects = _selection(expression)
    matching = tuple(release for version, release in table.items() if selects(version))
    if matching:
        return matching
    minors = sorted({release.minor for release in table.values()}, key=version_key)
    raise NoSuchBuild(
        f"torch {expression} is not in the table of known releases. {since_facts(expression)}",
        advice=f"Known: {', '.join(minors)}; newest is {list(table)[-1]}.",
    )


def since_facts(expression: str, cuda: str | None = "X.Y") -> str:
    """How old the facts are, and what to do if a release that they do not have is newer."""
    date, oldest = edition().date, next(iter(releases()))
    if not EXACT.fullmatch(expression) or version_key(expression) < version_key(oldest):
        return f"The facts are of {date}."
    build = f"--cuda {cuda}" if cuda else "--cpu"
    return (
        f"It may have been released after these facts ({date}): `provision facts update`, or insist "
        f"with `--torch {expression} {build} --source wheels`, which reads the package index."
    )


def covers_minor(expression: str, minor: str) -> bool:
    """Whether an expression selects every patch of a minor release, also future ones.

    `latest` does, for the newest minor release.
    """
    expression = expression.strip()
    if expression == LATEST:
        return True
    patches = [version for version in releases() if version.startswith(f"{minor}.")]
    selects = _selection(expression)
    return all(selects(version) for version in (*patches, f"{minor}.99"))


@cache
def _selection(expression: str) -> Callable[[str], bool]:
    """Whether an expression other than `latest` selects a version."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if _NUMBERS.fullmatch(expression):
        parts = version_key(expression)
        return lambda version: version_key(version)[: len(parts)] == parts
    try:
        return SpecifierSet(expression or "nothing").contains
    except InvalidSpecifier as error:
        raise InvalidSpec(
            f"torch {expression!r} is not a release.",
            advice="Write 2, 2.3, 2.3.1, a range such as '>=2.3,<2.6', or latest; --cuda names the "
            "CUDA version (--cuda 12.1).",
        ) from error


def _release(version: str, row: dict[str, Any]) -> Release:
    defaults: dict[Platform, IndexDefault] = {}
    for platform, default in row["index_default"].items():
        defaults[platform] = IndexDefault(
            build=default["build"],
            python=tuple(default["python"]["versions"]),
            python_source=default["python"]["source"],
            source=default["source"],
        )
    vision, audio = row["torchvision"], row["torchaudio"]
    audio_version = audio["version"]
    # Later releases have none (pytorch/audio#4212), only an old one that still runs.
    if audio_version and not audio["pins_torch"] and minor(audio_version) != minor(version):
        audio_version = None
    channel = row["pytorch_channel"]
    of_channel = dict(channel.get("companions", {}))
    channel_source = of_channel.pop("source", "")
    return Release(
        version=version,
        index_default=defaults,
        companions=(
            Companion(name="torchvision", version=vision["version"], source=vision["source"] or ""),
            Companion(name="torchaudio", version=audio_version, source=audio["source"] or ""),
        ),
        torchaudio_pins_torch=audio["pins_torch"],
        companions_python=tuple(vision["python"]) if "python" in vision else None,
        wheels=tuple(_wheel(tag, build, row) for tag, build in row["wheels"].items()),
        pytorch=tuple(_channel_build(cuda, build, row) for cuda, build in channel["cuda"].items()),
        pytorch_companions=tuple(
            Companion(name=name, version=of_channel[name], source=channel_source)
            for name in ("torchvision", "torchaudio")
            if of_channel
        ),
        conda_forge=tuple(starmap(_forge_build, row["conda_forge"]["cuda"].items())),
        pytorch_source=channel["source"],
        conda_forge_source=row["conda_forge"]["source"],
        from_index=row.get("from_index", False),
    )


def _compiled(row: dict[str, Any]) -> dict[str, Any]:
    """What a build was compiled for."""
    sm = row["architectures"]["sm"]
    return {
        "architectures": None if sm is None else tuple(sm),
        "ptx": row["architectures"]["ptx"],
        "architectures_source": row["architectures"]["source"],
        "glibc": row["glibc"]["minimum"],
        "glibc_source": row["glibc"]["source"],
    }


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """The facts that every build has, known or not."""
    versions = row["python"]["versions"]
    return {
        "nccl": row["nccl"]["version"],
        "nccl_floor": row["nccl"].get("floor"),
        "nccl_source": row["nccl"]["source"],
        "cudnn": row["cudnn"]["version"],
        "cudnn_floor": row["cudnn"].get("floor"),
        "cudnn_source": row["cudnn"]["source"],
        **_compiled(row),
        "python": None if versions is None else tuple(versions),
        "python_seen": tuple(row["python"].get("seen", ())),
        "python_source": row["python"]["source"],
    }


def _wheel(tag: str, build: dict[str, Any], row: dict[str, Any]) -> Build:
    defaults: dict[Platform, dict[str, Any]] = row["index_default"]
    by_platform: dict[Platform, dict[str, Any]] = {}
    for platform, default in defaults.items():
        if platform != PLATFORM and default["build"] == tag:
            by_platform[platform] = _wheel_on_platform(default)
    aarch64 = row.get("aarch64_wheels", {}).get(tag)
    if aarch64:
        # Of PyTorch's own index, for the same Pythons as what the package index serves there.
        by_platform["linux-aarch64"] = {
            **_wheel_on_platform(defaults["linux-aarch64"]),
            **_compiled(aarch64),
            "source": aarch64["source"],
            "nccl": None,
            "nccl_is_package": False,
            "nccl_source": None,
            "cudnn": None,
            "cudnn_source": None,
        }
    # The wheel that was read for the row is the index's default.
    triton = row["triton"] if build["on_pypi"] else UNKNOWN
    return Build(
        tag=tag,
        cuda=build["cuda"],
        on_pypi=build["on_pypi"],
        platforms=(PLATFORM, *by_platform),
        nccl_is_package=build["nccl"]["linkage"] == "nvidia-nccl wheel",
        triton=triton["requirement"],
        triton_source=triton["source"],
        specs=(),
        source=build["source"],
        free_threaded=tuple(defaults[PLATFORM]["python"]["free_threaded"]),
        by_platform=by_platform,
        **_facts(
            {
                "glibc": defaults[PLATFORM]["glibc"],
                **build,
                "python": defaults[PLATFORM]["python"],
            }
        ),
    )


def _wheel_on_platform(default: dict[str, Any]) -> dict[str, Any]:
    """The wheel's requirements are the same on both machines (the refresh of the data checks it);
    what it was compiled for is not."""
    python = default["python"]
    return {
        **_compiled({"architectures": UNKNOWN, **default}),
        "source": default["source"],
        "python": tuple(python["versions"]),
        "free_threaded": tuple(python["free_threaded"]),
        "python_source": python["source"],
    }


def cuda_of_tag(tag: str) -> str:
    """12.1 of cu121; any other text as it is."""
    return re.sub(r"^cu(\d\d)(\d)$", r"\1.\2", tag)


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
        **_facts(build),
    )


def _forge_build(cuda: str, build: dict[str, Any]) -> Build:
    platforms: tuple[Platform, ...] = tuple(
        platform for platform in ("linux-aarch64",) if platform in build
    )
    return Build(
        tag=cuda,
        cuda=cuda,
        on_pypi=False,
        platforms=(PLATFORM, *platforms),
        nccl_is_package=True,
        triton=build["triton"]["requirement"],
        triton_source=build["triton"]["source"],
        specs=tuple(build["specs"]),
        source=build["source"],
        by_platform={
            platform: {**_facts(build[platform]), "source": build[platform]["source"]}
            for platform in platforms
        },
        **_facts(build),
    )


def minor(version: str) -> str:
    """2.3 of 2.3.1."""
    return ".".join(version.split(".")[:2])


@cache
def version_key(version: str) -> tuple[int, ...]:
    """Numeric order for versions made of numbers and dots: 2.10 after 2.9. A nightly's day is one
    more number."""
    return tuple(map(int, version.replace(".dev", ".").split(".")))
