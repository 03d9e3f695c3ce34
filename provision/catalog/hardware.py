"""Machines: drivers, GPUs and glibc, and whether a build runs on them. Every answer may be "unknown", which is never a yes."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

from provision.catalog.loading import load
from provision.catalog.releases import Build
from provision.catalog.versions import version_key
from provision.core.errors import InvalidSpec
from provision.core.types import PLATFORM, Platform

Compatibility = Literal["yes", "no", "unknown"]
GpuSupport = Literal[
    "yes", "ptx", "no", "unknown"
]  # ptx: only by compiling the build's PTX when it starts
# What product names carry that says nothing about the architecture.
DECORATION = re.compile(
    r"nvidia|tesla|geforce|gpu|graphics|generation|laptop|max-?q|pcie|sxm\d*|nvl|ac|hbm\d*e?|\d+(gb|mb)|mig|\d+[cg]\.\d+gb|"
    r"server|workstation|edition|gen\d"
)
# CUDA C++ Programming Guide, Binary Compatibility: code for one minor version runs on later ones of the same major, but not between
# Tegra and other GPUs.
TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (11, 0)})


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """One CUDA version. Drivers are those of `driver_platforms`; for other platforms no source says."""

    cuda: str
    driver_floor: (
        str  # the oldest driver that runs programs of this CUDA (minor-version compatibility)
    )
    driver_source: str
    toolkit_driver: str  # the driver that ships with it: what compiling PTX, and new features, need
    toolkit_source: str
    capability_min: str  # GPUs older than this it cannot compile for
    capability_max: str | None  # nor for newer ones; None: not known
    capability_source: str
    driver_platforms: tuple[Platform, ...] = ("linux-64",)  # NVIDIA's tables name Linux x86_64


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One GPU architecture. None: no source says from when, or up to when."""

    name: str  # sm_90
    first_cuda: str | None
    first_source: str | None
    last_cuda: str | None
    last_source: str | None

    @property
    def capability(self) -> str:
        return _capability(self.name)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU product, or an architecture that was asked for by itself."""

    name: str
    architecture: str  # sm_90
    source: str

    @property
    def capability(self) -> str:
        return _capability(self.architecture)


@functools.cache
def toolkits() -> dict[str, Toolkit]:
    """CUDA version -> toolkit, oldest first."""
    return {cuda: _toolkit(cuda, row) for cuda, row in load("cuda.yml")["toolkits"].items()}


@functools.cache
def architectures() -> dict[str, Architecture]:
    """sm_XY -> what is known of it, oldest first."""
    rows = load("cuda.yml")["architectures"]
    return {
        name: Architecture(
            name=name,
            first_cuda=row["first_cuda"]["version"],
            first_source=row["first_cuda"]["source"],
            last_cuda=row["last_cuda"]["version"],
            last_source=row["last_cuda"]["source"],
        )
        for name, row in rows.items()
    }


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Product name -> GPU, in the order of the file."""
    table: dict[str, Gpu] = {}
    for row in load("gpus.yml"):
        architecture = "sm_" + row["capability"].replace(".", "")
        table.update(
            {
                name: Gpu(name=name, architecture=architecture, source=row["source"])
                for name in row["products"]
            }
        )
    return table


@functools.cache
def find_gpu(asked: str) -> Gpu:
    """The GPU that a word means: sm_90, 9.0, H100, or a name as nvidia-smi prints it. Raises InvalidSpec with the close ones."""
    text = asked.strip().lower()
    by_number = re.fullmatch(r"(?:sm_?|compute_?)?(\d{2,3})[a-f]?|(\d{1,2})\.(\d)", text)
    if by_number:
        name = f"sm_{by_number[1] or by_number[2] + by_number[3]}"
        if name in _known_architectures():
            return Gpu(name=name, architecture=name, source=_known_architectures()[name])
    products = {_words(name): gpu for name, gpu in gpus().items()}
    if not by_number and _words(text) in products:
        return products[_words(text)]
    raise InvalidSpec(
        f"GPU {asked!r} is not known.",
        advice=f"{_close(text)}An architecture (sm_90, 9.0) also says it.",
    )


def runs_on_driver(cuda: str, driver: str, platform: Platform = PLATFORM) -> Compatibility:
    """Whether a driver (535.129.03, or 535 for a driver of that branch) runs programs of a CUDA version."""
    toolkit = toolkits().get(cuda)
    if toolkit is None or platform not in toolkit.driver_platforms:
        return "unknown"
    return _not_older(driver, toolkit.driver_floor)


def runs_on_gpu(build: Build, gpu: Gpu, driver: str | None = None) -> GpuSupport:
    """Whether a build holds code for a GPU. Code for sm_XY runs on X.Z with Z >= Y; PTX on everything newer, if the driver is not
    older than the toolkit's own (NVIDIA CUDA Compatibility guide: minor-version compatibility leaves PTX out)."""
    if build.architectures is None:
        return _by_toolkit(build.cuda, gpu)
    have = [_number(name) for name in build.architectures]
    want = _number(gpu.architecture)
    if any(_runs_code(want, code) for code in have):
        return "yes"
    if build.ptx is None:
        return "unknown"
    if not build.ptx or want < max(have):
        return "no"
    toolkit = toolkits().get(build.cuda)
    compiles = (
        "yes"
        if driver is None
        else _not_older(driver, toolkit.toolkit_driver)
        if toolkit
        else "unknown"
    )
    return "ptx" if compiles == "yes" else compiles


def _runs_code(gpu: tuple[int, int], code: tuple[int, int]) -> bool:
    if gpu == code:
        return True
    return gpu[0] == code[0] and code[1] < gpu[1] and gpu not in TEGRA and code not in TEGRA


def cuda_range_text(gpu: Gpu) -> str:
    """From which CUDA to which the toolkits compile for a GPU, as the end of a sentence about it; empty where no source says."""
    known = architectures().get(gpu.architecture)
    first = (
        f"from {known.first_cuda} on ({known.first_source})" if known and known.first_cuda else ""
    )
    last = f"up to {known.last_cuda} ({known.last_source})" if known and known.last_cuda else ""
    return (
        f"for which CUDA compiles {' and '.join(filter(None, (first, last)))}"
        if first or last
        else ""
    )


def runs_on_machine(build: Build, glibc: str) -> Compatibility:
    """Whether a machine's glibc is new enough for a build."""
    if build.glibc is None:
        return "unknown"
    return "yes" if version_key(glibc) >= version_key(build.glibc) else "no"


def _by_toolkit(cuda: str, gpu: Gpu) -> GpuSupport:
    """A build whose architectures are not known holds no code for a GPU that its toolkit cannot compile for. PTX would not help
    an older GPU, and might a newer one."""
    toolkit = toolkits().get(cuda)
    if toolkit and _number(gpu.architecture) < _number(
        "sm_" + toolkit.capability_min.replace(".", "")
    ):
        return "no"
    known = architectures().get(gpu.architecture)
    gone = (
        known is not None
        and known.last_cuda is not None
        and version_key(cuda) > version_key(known.last_cuda)
    )
    return "no" if gone else "unknown"


def _not_older(driver: str, floor: str) -> Compatibility:
    """A bare branch (525) says nothing about which of its drivers it is, so it answers only for other branches' floors."""
    have, want = version_key(driver), version_key(floor)
    if len(have) < len(want) and have == want[: len(have)]:
        return "unknown"
    return "yes" if have >= want else "no"


def _toolkit(cuda: str, row: dict[str, Any]) -> Toolkit:
    return Toolkit(
        cuda=cuda,
        driver_floor=row["driver_floor"]["version"],
        driver_source=row["driver_floor"]["source"],
        toolkit_driver=row["toolkit_driver"]["version"],
        toolkit_source=row["toolkit_driver"]["source"],
        capability_min=row["capability"]["min"],
        capability_max=row["capability"]["max"],
        capability_source=row["capability"]["source"],
    )


def _capability(architecture: str) -> str:
    digits = architecture.removeprefix("sm_")
    return f"{digits[:-1]}.{digits[-1]}"


def _number(architecture: str) -> tuple[int, int]:
    digits = architecture.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


@functools.cache
def _known_architectures() -> dict[str, str]:
    known = {gpu.architecture: gpu.source for gpu in gpus().values()}
    return known | {
        name: one.first_source or one.last_source or "" for name, one in architectures().items()
    }


def _words(name: str) -> str:
    """A product name without what varies between nvidia-smi, data sheets and people."""
    words = re.split(r"[\s_]+|-(?=[^q])", name.lower())
    return " ".join(word for word in words if word and not DECORATION.fullmatch(word))


def _close(text: str) -> str:
    products = {_words(name): name for name in gpus()}
    having = (
        [words for words in products if set(_words(text).split()) <= set(words.split())]
        if _words(text)
        else []
    )
    close = difflib.get_close_matches(_words(text), products, n=5, cutoff=0.5)
    near = [products[words] for words in dict.fromkeys([*having, *close])][:5]
    one_of_each = {gpu.architecture: name for name, gpu in reversed(gpus().items())}
    return (
        f"Close ones: {', '.join(near)}. "
        if near
        else f"Known ones include {', '.join(one_of_each.values())}. "
    )
