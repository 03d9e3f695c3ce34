"""Facts of a release from its wheels on a package index: their names, and what they require.

No wheel is downloaded. What the index does not say stays unknown: the GPUs that a build holds code
for, and which driver its CUDA needs.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision import __version__, catalog, sources
from provision.adapters import uv
from provision.adapters.uv.linux_wheels import LinuxWheel, WheelIndex
from provision.catalog.facts import blank
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.errors import NoSuchBuild, Unreachable
from provision.core.mirrors import Mirrors
from provision.core.paths import Folders, make_private_directory
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.core.statements import marker_holds
from provision.resolver import constraints

MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
# Pythons that markers of triton tell apart.
PYTHONS = ("3.8", "3.10", "3.11", "3.12", "3.13")
OLDEST = Version("1.12")  # the table's first release
# For so long what was read of a release is not read again: a patch release may follow.
KEEP_S = 86_400.0
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_.*")
Row = dict[str, Any]


@frozen
class Pins:
    """What a torch wheel requires of NVIDIA and triton on its machine.

    cuda: 13.2. toolkit: 13.2.2, where one is pinned. triton: a specifier, or none.
    """

    cuda: str | None
    toolkit: str | None
    nccl: str | None
    cudnn: str | None
    triton: str


class TorchIndex:
    """What a package index says of torch. unread: what could not be read, in words."""

    def __init__(self, index: WheelIndex) -> None:
        """Raises NoSuchBuild for an index without torch."""
        self.index = index
        self.unread: list[str] = []
        self.pins: dict[str, dict[str, Pins]] = {}
        self.torch = index.wheels("torch")
        if not self.torch:
            raise NoSuchBuild(
                "The package index has no torch.",
                advice="Name another with --mirror pypi=URL, or in pip's settings.",
            )

    @property
    def releases(self) -> list[str]:
        """Releases that the facts should have, oldest first."""
        versions = sorted({Version(wheel.base) for wheel in self.torch})
        return [str(version) for version in versions if version >= OLDEST]

    def release(self, version: str, tags: Iterable[str] = ()) -> Row:
        """The facts of a release as the table of releases has them; the rest is unknown, as its
        companions are: those that uv chooses for it.

        tags: builds to look for in PyTorch's own wheel index, if the user has named it.
        """
        row = blank("release")
        self.pins[version] = {}
        for platform, machine in MACHINES.items():
            self._add_default(row, version, platform, of_machine(self.torch, version, machine))
        for tag in tags:
            self._add_build(row, version, tag)
        return row

    def _add_default(
        self, row: Row, version: str, platform: str, wheels: Sequence[LinuxWheel]
    ) -> None:
        """What the index serves as plain torch==V on a platform."""
        wheel = specimen(wheels)
        pins = self._pins_of(self.index, wheel, f"{version} {platform}")
        if wheel is None or pins is None:
            return
        self.pins[version][platform] = pins
        default = default_row(version, wheels, pins)
        row["index_default"][platform] = default
        tag = default["build"] = self._build_of(wheel, pins)
        source = f"PyPI metadata torch=={version}"
        if platform == "linux-64":
            row["triton"] = {"requirement": pins.triton, "source": source}
            if pins.cuda:
                row["wheels"][tag] = build_row(pins, source, on_pypi=True)

    def _pins_of(self, index: WheelIndex, wheel: LinuxWheel | None, title: str) -> Pins | None:
        if wheel is None:
            return None
        requirements = index.requirements(wheel)
        if requirements is None:
            self.unread.append(f"{title}: metadata of {wheel.name}")
            return None
        return read_pins(requirements, wheel.machine, wheel.python)

    def _build_of(self, wheel: LinuxWheel, pins: Pins) -> str | None:
        """cu132, or cpu; None if there are no pins, and CUDA code may be in the wheel."""
        if pins.cuda:
            return build_tag(pins.cuda)
        names, _ = self.index.members(wheel)
        has_no_cuda = names and not any("libtorch_cuda" in name for name in names)
        return "cpu" if has_no_cuda else None

    def _add_build(self, row: Row, version: str, tag: str) -> None:
        url = uv.torch_index_url(tag)
        if url is None or tag in row["wheels"]:
            return
        with WheelIndex(url) as index:
            wheel = specimen(of_machine(index.wheels("torch"), version, "x86_64", tag))
            pins = self._pins_of(index, wheel, f"{version} {tag}")
        if pins and (pins.cuda or pins.nccl or pins.cudnn):
            source = f"metadata torch=={version}+{tag} (PyTorch wheel index)"
            # The folder says the CUDA of wheels that do not pin its runtime.
            cuda = pins.cuda or catalog.cuda_of_tag(tag)
            pins = replace(pins, cuda=cuda)
            row["wheels"][tag] = build_row(pins, source, on_pypi=False)


def of_machine(
    wheels: Sequence[LinuxWheel], release: str, machine: str, local: str | None = None
) -> list[LinuxWheel]:
    """Those of one release for one machine; of several rebuilds, the newest."""
    matching = [
        wheel
        for wheel in wheels
        if wheel.base == release and wheel.machine == machine and wheel.version.local == local
    ]
    newest = max((wheel.build for wheel in matching), default=())
    return [wheel for wheel in matching if wheel.build == newest]


def specimen(wheels: Sequence[LinuxWheel]) -> LinuxWheel | None:
    """The wheel whose metadata stands for all: its requirements differ by Python in markers only."""
    plain = [wheel for wheel in wheels if not wheel.python.endswith("t")]
    return max(
        plain, key=lambda wheel: (wheel.python in ("3.10", "3.11"), wheel.name), default=None
    )


def read_pins(requirements: Sequence[str], machine: str, python: str) -> Pins:
    """The pins that hold on a Linux machine of this kind, with this Python."""
    platform: Platform = "linux-aarch64" if machine == "aarch64" else "linux-64"
    exact: dict[str, str | None] = {}
    triton = "none"
    for text in requirements:
        requirement = Requirement(text)
        marker = str(requirement.marker or "")
        if marker_holds(marker, python, platform):
            exact[requirement.name] = exact_version(requirement.specifier)
        # triton's marker also names Pythons; any that holds for the machine counts.
        if requirement.name == "triton" and any(
            marker_holds(marker, minor, platform) for minor in (*PYTHONS, python)
        ):
            triton = str(requirement.specifier)

    def of(prefix: str) -> str | None:
        return next((exact[name] for name in exact if name.startswith(prefix)), None)

    cuda = exact.get("cuda-toolkit") or of("nvidia-cuda-runtime")
    return Pins(
        cuda=".".join(cuda.split(".")[:2]) if cuda else None,
        toolkit=exact.get("cuda-toolkit"),
        nccl=of("nvidia-nccl"),
        cudnn=of("nvidia-cudnn-cu"),
        triton=triton,
    )


def build_tag(cuda: str) -> str:
    """cu121 for 12.1."""
    return f"cu{cuda.replace('.', '')}"


def default_row(version: str, wheels: Sequence[LinuxWheel], pins: Pins) -> Row:
    """What the names of its wheels say of the default on one platform."""
    machine = wheels[0].machine
    pythons = sorted({wheel.python for wheel in wheels}, key=lambda text: Version(text.rstrip("t")))
    tags = ", ".join(sorted({wheel.platform_tag for wheel in wheels}))
    files = f"PyPI file list torch=={version}"
    return {
        "build": None,
        "toolkit": pins.toolkit,
        "source": f"PyPI metadata torch=={version} (linux {machine} wheel)",
        "python": {
            "versions": [python for python in pythons if not python.endswith("t")],
            "free_threaded": [python for python in pythons if python.endswith("t")],
            "source": f"{files} (linux {machine} wheels)",
        },
        "glibc": {"minimum": glibc(wheels), "source": f"{files} (platform tag {tags})"},
    }


def build_row(pins: Pins, source: str, *, on_pypi: bool) -> Row:
    """What a CUDA wheel pins."""
    row = {**blank("wheel"), "cuda": pins.cuda, "on_pypi": on_pypi}
    row["source"] = source
    if pins.nccl:
        row["nccl"] = {"version": pins.nccl, "linkage": "nvidia-nccl wheel", "source": source}
    if pins.cudnn:
        row["cudnn"] = {"version": pins.cudnn, "source": source}
    return row


def glibc(wheels: Sequence[LinuxWheel]) -> str | None:
    """The glibc that platform tags promise. manylinux1 wheels of torch need a newer one than the
    tag says, so it proves nothing."""
    floors = {
        _MANYLINUX.sub(r"2.\1", wheel.platform_tag.replace("manylinux2014", "manylinux_2_17"))
        for wheel in wheels
    }
    floor = floors.pop()
    return None if floors or not floor.startswith("2.") else floor


def exact_version(specifiers: SpecifierSet) -> str | None:
    return next((each.version for each in specifiers if each.operator == "=="), None)


# Releases that the facts do not have


def usable(row: Row) -> Row | None:
    """A release as the facts may have it; None if its build for linux-64 is not known."""
    defaults = {
        platform: default for platform, default in row["index_default"].items() if default["build"]
    }
    if "linux-64" not in defaults:
        return None
    return {**row, "index_default": defaults, "from_index": True}


def ensure_release(folders: Folders, mirrors: Mirrors, spec: Spec) -> None:
    """Add the release that a request insists on (`--torch 2.16 --cuda 13.2 --source wheels`) to the
    facts of this process, from the package index, if they do not have it.

    What was read stays in the user's cache for a day, and longer where the index does not answer.
    Raises NoSuchBuild if the index does not have it either, Unreachable if it cannot be read.
    """
    torch = spec.torch
    if spec.source == sources.AUTO or sources.by_name(spec.source).manager != "pip":
        return
    if spec.cuda == "auto" or not catalog.EXACT.fullmatch(torch) or constraints.releases_of(torch):
        return
    tags = [build_tag(spec.cuda)] if spec.cuda else []
    indexes = [uv.torch_index_url(tag) for tag in tags] + uv.index_urls(None, mirrors)
    key = hashlib.sha256(f"{__version__} {torch} {tags} {indexes}".encode()).hexdigest()
    path = folders.index_facts / f"{key[:24]}.json"
    rows: dict[str, Row] = {}
    with suppress(OSError, ValueError):
        rows = json.loads(path.read_bytes())
    if not rows or time.time() - path.stat().st_mtime > KEEP_S:
        try:
            rows = _read_release(torch, tags, mirrors)
            make_private_directory(path.parent)
            atomic_write(path, json.dumps(rows))
        except Unreachable as error:
            if not rows:
                error.advice = f"{error.advice} {catalog.since_facts(torch)}".strip()
                raise
    catalog.add_releases(rows)


def _read_release(torch: str, tags: Sequence[str], mirrors: Mirrors) -> dict[str, Row]:
    with WheelIndex(mirrors=mirrors) as index:
        torch_index = TorchIndex(index)
        versions = [text for text in torch_index.releases if f"{text}.".startswith(f"{torch}.")]
        row = usable(torch_index.release(versions[-1], tags)) if versions else None
    if row is None:
        unread = f"{'; '.join(torch_index.unread)}. " if torch_index.unread else ""
        newest = torch_index.releases[-1]
        raise NoSuchBuild(
            f"torch {torch} is neither in the facts of {catalog.edition().date} nor on the package "
            f"index as a wheel that says its CUDA. {unread}".strip(),
            advice=f"The newest there is {newest}; `provision facts update` may know more.",
        )
    return {versions[-1]: row}
