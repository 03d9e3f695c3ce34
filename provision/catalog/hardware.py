"""Hardware: drivers, GPUs and glibc, and whether a build runs on them. Every answer may be
"unknown", which is never a yes."""

from __future__ import annotations

import re
from typing import Literal

from provision.catalog.facts import cached, facts_table
from provision.catalog.releases import Build, version_key
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.platforms import PLATFORM, Platform
from provision.core.similar_names import did_you_mean
from provision.core.types import Lock, LockedPackage, Resolution

Compatibility = Literal["yes", "no", "unknown"]
# ptx: only by compiling the build's PTX when it starts.
GpuSupport = Literal["yes", "ptx", "no", "unknown"]
# Parts of product names that do not depend on the architecture.
DECORATION = (
    r"nvidia|tesla|geforce|grid|gpu|graphics|generation|laptop|max-?q|pcie|sxm\d*|nvl|ac|"
    r"hbm\d*e?|\d+(gb?|mb)|mig|\d+[cg]\.\d+gb|\(nvgpu\)|embedded|"
    r"server|workstation|edition|gen\d|developer|kit"
)
# The end of a vGPU's name, as the driver's manager makes it: A100-40C, A10-24Q, A100-1-5C (of a MIG
# slice), A100-1-5CME (NVIDIA AI Enterprise documentation, vGPU types).
VGPU_TYPE = r"(-\d)?-\d+[qcab](me)?$"
# How the makers of other GPUs call them.
OTHER_MAKERS = {
    "AMD": r"\b(amd|instinct|radeon|gfx\d|mi\d{2,3}|rx ?\d{4})",
    "Intel": r"\b(intel|gaudi|arc\b)",
}
# CUDA C++ Programming Guide, Binary Compatibility: code for one minor version runs on later ones of
# the same major, but not between Tegra and other GPUs.
TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (11, 0)})

_GLIBC = r"__glibc >=\s*(\d+(?:\.\d+)*)(?:,.*|\s.*)?"
_MANYLINUX = r"manylinux_(\d+)_(\d+)_"
# 2.5, 2.12 and 2.17: older than any machine that runs our builds.
_OLD_MANYLINUX = r"manylinux(?:1|2010|2014)_"


@frozen
class Toolkit:
    """One CUDA version. Drivers are those of Linux x86_64; for other platforms no source
    says."""

    cuda: str
    driver_floor: str  # the oldest driver that runs its programs (minor-version compatibility)
    driver_source: str
    driver_branch: str | None  # of which every public driver suffices
    # The driver that ships with it: what compiling PTX, and new features, need. None: not known.
    toolkit_driver: str | None
    capability_min: str  # GPUs older than this it cannot compile for
    capability_max: str | None  # nor for newer ones; None: not known


@frozen
class Gpu:
    """A GPU product, or an architecture that was requested by itself."""

    name: str
    architecture: str  # sm_90
    source: str
    # The only platform that has it: that of the CPU on its module. None: it is a card.
    platform: Platform | None = None
    platform_source: str | None = None

    @property
    def capability(self) -> tuple[int, int]:
        """(9, 0) of sm_90."""
        return _number(self.architecture)

    @property
    def described(self) -> str:
        """With its architecture, as a sentence: V100 is sm_70."""
        name = "the GPU" if self.name == self.architecture else self.name
        return f"{name} is {self.architecture}"


@cached
def toolkits() -> dict[str, Toolkit]:
    """CUDA version -> toolkit, oldest first."""
    table = {}
    for cuda, row in facts_table("cuda")["toolkits"].items():
        table[cuda] = Toolkit(
            cuda=cuda,
            driver_floor=row["driver_floor"]["version"],
            driver_source=row["driver_floor"]["source"],
            driver_branch=row["driver_floor"].get("branch"),
            toolkit_driver=row["toolkit_driver"]["version"],
            capability_min=row["capability"]["min"],
            capability_max=row["capability"]["max"],
        )
    return table


@cached
def gpus() -> dict[str, Gpu]:
    """GPUs by product name, in the order of the file."""
    table: dict[str, Gpu] = {}
    for row in facts_table("gpus"):
        architecture = "sm_" + row["capability"].replace(".", "")
        for name in row["products"]:
            table[name] = Gpu(
                name=name,
                architecture=architecture,
                source=row["source"],
                platform=row.get("platform"),
                platform_source=row.get("platform_source"),
            )
    return table


@cached
def find_gpu(text: str) -> Gpu:
    """The GPU that a text names: sm_90, 9.0, H100, a name as nvidia-smi prints it, or the end of a
    name that only one product has (4090, a6000). Raises InvalidSpec with similar names, or with the
    maker of a GPU that is not NVIDIA's."""
    name = text.strip().lower()
    by_number = re.fullmatch(r"(?:sm_?|compute_?)?(\d{2,3})[a-f]?|(\d{1,2})\.(\d)", name)
    if by_number:
        architecture = f"sm_{by_number[1] or by_number[2] + by_number[3]}"
        sources = {gpu.architecture: gpu.source for gpu in gpus().values()}
        for tag, row in facts_table("cuda")["architectures"].items():
            sources[tag] = row["first_cuda"]["source"] or row["last_cuda"]["source"] or ""
        if architecture in sources:
            return Gpu(name=architecture, architecture=architecture, source=sources[architecture])
    matching = _products_named(name)
    if len(matching) == 1:
        return matching[0]
    for maker, names in OTHER_MAKERS.items():
        if re.search(names, name):
            raise InvalidSpec(
                f"GPU {text!r} is made by {maker}; there are builds for NVIDIA GPUs only.",
                advice="A CPU build (`cpu: true`, `--cpu`) runs there, without the GPU.",
            )
    raise InvalidSpec(
        f"GPU {text!r} is not in the table, which has NVIDIA GPUs only.",
        advice=f"{did_you_mean(text.strip().upper(), gpus())}An architecture (sm_90, 9.0) also names it.",
    )


def runs_on_driver(cuda: str, driver: str, platform: Platform = PLATFORM) -> Compatibility:
    """Whether a driver (535.129.03, or 535 for a driver of that branch) runs programs of a CUDA
    version."""
    toolkit = toolkits().get(cuda)
    if toolkit is None or platform != PLATFORM:
        return "unknown"
    if driver == toolkit.driver_branch:
        return "yes"
    return _is_at_least(driver, toolkit.driver_floor)


def runs_on_gpu(build: Build, gpu: Gpu, driver: str | None = None) -> GpuSupport:
    """Whether a build holds code for a GPU.

    Code for sm_XY runs on X.Z with Z >= Y; PTX on everything newer, if the driver is not older than
    the toolkit's own (NVIDIA CUDA Compatibility guide: minor-version compatibility leaves PTX out).
    """
    if build.architectures is None:
        return _support_by_toolkit(build.cuda, gpu)
    compiled_for = [_number(name) for name in build.architectures]
    if any(_runs_code(gpu.capability, code) for code in compiled_for):
        return "yes"
    if build.ptx is None:
        return "unknown"
    if not build.ptx or gpu.capability < max(compiled_for):
        return "no"
    if driver is None:
        return "ptx"
    toolkit = toolkits().get(build.cuda)
    if toolkit is None or toolkit.toolkit_driver is None:
        return "unknown"
    compiles_ptx = _is_at_least(driver, toolkit.toolkit_driver)
    return "ptx" if compiles_ptx == "yes" else compiles_ptx


def _runs_code(gpu: tuple[int, int], code: tuple[int, int]) -> bool:
    if gpu == code:
        return True
    return gpu[0] == code[0] and code[1] < gpu[1] and gpu not in TEGRA and code not in TEGRA


def cuda_range(gpu: Gpu) -> tuple[str, str]:
    """From which CUDA to which the toolkits compile for a GPU, as the end of a sentence about it,
    and the source; both empty if no source says."""
    row = facts_table("cuda")["architectures"].get(gpu.architecture, {})
    limits, limit_sources = [], []
    for key, form in (("first_cuda", "from {} on"), ("last_cuda", "up to {}")):
        if row and row[key]["version"]:
            limits.append(form.format(row[key]["version"]))
            limit_sources.append(row[key]["source"])
    if not limits:
        return "", ""
    sources = "; ".join(dict.fromkeys(filter(None, limit_sources)))
    return f"for which CUDA compiles {' and '.join(limits)}", sources


def required_glibc(resolution: Resolution, lock: Lock) -> str:
    """The oldest glibc that the locked packages run with.

    It may be newer than the resolution's: this machine's Python, if it was packaged, may need a
    newer one, and the wheels were chosen for that.
    """
    versions = [resolution.glibc]
    for package in lock.packages:
        versions += _glibc_of_package(package)
    return max(versions, key=version_key)


def _glibc_of_package(package: LockedPackage) -> list[str]:
    """The versions of glibc that a package requires: from the dependencies of a conda package, or
    from the file name of a wheel (at most one)."""
    if package.manager == "conda":
        matches = (re.fullmatch(_GLIBC, dependency) for dependency in package.depends)
        return [match[1] for match in matches if match]
    if re.search(_OLD_MANYLINUX, package.filename):
        return []
    tags = [f"{major}.{minor}" for major, minor in re.findall(_MANYLINUX, package.filename)]
    return [min(tags, key=version_key)] if tags else []


def _support_by_toolkit(cuda: str, gpu: Gpu) -> GpuSupport:
    """For a build whose architectures are not known: it holds no code for a GPU that its toolkit
    cannot compile for.

    PTX would not help an older GPU, and might help a newer one.
    """
    toolkit = toolkits().get(cuda)
    if toolkit and gpu.capability < version_key(toolkit.capability_min):
        return "no"
    row = facts_table("cuda")["architectures"].get(gpu.architecture)
    last_cuda = row["last_cuda"]["version"] if row else None
    if last_cuda is not None and version_key(cuda) > version_key(last_cuda):
        return "no"
    return "unknown"


def _is_at_least(driver: str, floor: str) -> Compatibility:
    """A bare branch (525) does not say which of its drivers it is: it is compared only with floors of
    other branches."""
    driver_key, floor_key = version_key(driver), version_key(floor)
    if len(driver_key) < len(floor_key) and driver_key == floor_key[: len(driver_key)]:
        return "unknown"
    return "yes" if driver_key >= floor_key else "no"


def _number(architecture: str) -> tuple[int, int]:
    digits = architecture.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def _plain_name(name: str) -> str:
    """A product name without the parts that nvidia-smi, data sheets and people write
    differently."""
    parts = re.split(r"[\s_]+|-(?=[^q])", re.sub(VGPU_TYPE, "", name.lower().strip()))
    return " ".join(part for part in parts if part and not re.fullmatch(DECORATION, part))


def _products_named(name: str) -> list[Gpu]:
    """The products of a name; if there are none, those whose names differ in spaces, `RTX` or `Jetson`."""
    plain_name = _plain_name(name)
    exact = [gpu for product, gpu in gpus().items() if _plain_name(product) == plain_name]
    if exact or not plain_name:
        return exact
    short_name = _short_name(name)
    return [gpu for product, gpu in gpus().items() if _short_name(product) == short_name]


def _short_name(name: str) -> str:
    """A plain name without spaces and without `RTX`, `GTX` or `Jetson` at its beginning: 4090ti."""
    return re.sub("^([rg]tx|jetson)(?=.)", "", _plain_name(name).replace(" ", ""))
