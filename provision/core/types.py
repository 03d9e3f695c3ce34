"""The products that stages hand to each other, as frozen dataclasses, and the statuses they share.

This module owns shapes only: no file is read, nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from provision.core.dataclass import frozen
from provision.core.package_names import url_filename
from provision.core.platforms import PLATFORM, Platform
from provision.core.requirement_urls import EDITABLE, is_source

if TYPE_CHECKING:
    from provision.core.spec_fields import Spec

BuildSource = str  # the name of a source of builds, which `provision.sources` knows
Manager = Literal["conda", "pip"]
StageStatus = Literal["made", "kept", "ran", "skipped"]
Verdict = Literal["pass", "warn", "fail", "unknown"]
SmokeTarget = Literal["prefix", "image"]  # where a smoke test runs
JOB_COMMENT = "provision:"  # the comment of each job of Slurm that provision launched begins so


@frozen
class HostGpus:
    """What a machine offers to CUDA programs: the NVIDIA driver and the GPUs."""

    driver: str | None = None
    gpus: tuple[str, ...] = ()  # sm_90, or the product's name where the driver says no more
    why: str = ""  # the reason, if nothing is known
    lost: int = 0  # GPUs of which the driver prints ERR! in place of facts


@frozen
class Pin:
    """One requirement of the environment, with its reason and the source of that."""

    manager: Manager
    requirement: str
    reason: str
    source: str


@frozen
class Choice:
    """One decision of the resolver with its reason, for `explain`, the passport and comments."""

    what: str
    value: str
    reason: str
    source: str


@frozen
class Resolution:
    """A spec resolved: exact versions, pins with reasons, and what the machine must offer."""

    spec: Spec
    torch: str
    local_version: str  # what torch.__version__ must say, e.g. 2.3.1+cu121
    source: BuildSource
    cuda: str | None
    python: str  # minor version, e.g. 3.11
    nccl: str | None
    cudnn: str | None
    architectures: tuple[str, ...]
    glibc: str
    driver_floor: str | None
    # Torch must be pinned with its local version: the index's default build is another one.
    needs_local_build: bool
    channels: tuple[str, ...]
    pins: tuple[Pin, ...]
    virtual_packages: tuple[tuple[str, str], ...]  # the same on every platform
    choices: tuple[Choice, ...]
    platforms: tuple[Platform, ...] = (PLATFORM,)
    warnings: tuple[Choice, ...] = ()  # pitfalls of this combination that no pin can avoid


def needs_python(dependencies: Iterable[str]) -> bool:
    """Whether names of conda packages hold Python."""
    return not {"python", "python_abi"}.isdisjoint(dependencies)


@frozen
class LockedPackage:
    """One line of the lock: exactly one file, by URL and hash."""

    manager: Manager
    name: str
    version: str
    url: str
    sha256: str  # empty for a source, see `is_source`
    md5: str | None = None
    build: str = ""
    depends: tuple[str, ...] = ()
    direct: bool = False  # a wheel that was requested by its URL, not by name from an index
    # The environment's platform: a noarch package is listed once for each platform. Locks of other
    # tools have platforms that we do not build for.
    platform: str = PLATFORM
    category: str = "main"  # of conda-lock: others (dev, extras) are installed only on request

    @property
    def filename(self) -> str:
        return url_filename(self.url)

    @property
    def is_source(self) -> bool:
        """A commit of a git repository, or an editable folder: there is no file with a hash."""
        return is_source(self.url)

    @property
    def is_archive(self) -> bool:
        """An index's source archive: there is no wheel."""
        is_file = self.manager == "pip" and not self.is_source
        return is_file and not self.filename.endswith(".whl")

    @property
    def is_editable(self) -> bool:
        return self.url.endswith(EDITABLE)

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of what it requires."""
        return tuple(dependency.split()[0] for dependency in self.depends)

    @property
    def is_for_python(self) -> bool:
        """Whether a conda package is for Python. A C library may have a wheel's name (zstd)."""
        return needs_python(self.needs)


@frozen
class Lock:
    """A parsed conda-lock.yml, seen from one of its platforms."""

    path: Path
    sha256: str  # of the file's bytes: the identity that prefix, image and passport carry
    inputs_sha256: str  # of environment.yml and virtual-packages.yml as they were locked
    content_hash: str  # of `platform`
    packages: tuple[LockedPackage, ...]  # of `platform`
    python_from: Literal["channel", "host"]
    portable: bool
    platform: Platform = PLATFORM
    platforms: tuple[Platform, ...] = (PLATFORM,)  # all that the file locks
    channels: tuple[str, ...] = ()  # as the file declares them
    as_of: str | None = None  # YYYY-MM-DD: what was published later was invisible to the solvers
    builds: tuple[str, ...] = ()  # as the inputs had them

    def find(self, name: str) -> LockedPackage | None:
        for package in self.packages:
            if package.name == name:
                return package
        return None

    def by(self, manager: Manager) -> tuple[LockedPackage, ...]:
        return tuple(package for package in self.packages if package.manager == manager)


@frozen
class Prefix:
    """An installed environment on this host."""

    name: str
    path: Path
    lock_sha256: str

    @property
    def python(self) -> Path:
        return self.path.joinpath("bin", "python")


@frozen
class Layer:
    """One layer of an image in a layout: a tar, whose digest then is its diff id, or a compressed
    one."""

    group: str
    digest: str  # sha256:...
    size: int
    media_type: str = "application/vnd.oci.image.layer.v1.tar"


@frozen
class Image:
    """An OCI image layout on disk, and its name in the Docker engine once loaded."""

    reference: str  # name:tag
    layout: Path
    manifest_digest: str
    image_id: str  # digest of the config: what the engine calls the image id
    base: str
    base_digest: str
    lock_sha256: str
    layers: tuple[Layer, ...]


@frozen
class Kernel:
    """An installed Jupyter kernelspec."""

    name: str
    display_name: str
    path: Path
    prefix: Path


@frozen
class SmokeResult:
    """A smoke report that was read back, and the folder with the test's files (report, logs,
    stacks)."""

    where: SmokeTarget
    verdict: Verdict
    report: dict[str, Any]
    evidence: Path


@frozen
class StageRecord:
    """What one stage of a build did, for the summary and the passport."""

    stage: str
    status: StageStatus
    detail: str
    seconds: float


@frozen
class BuildResult:
    """What `provision build` made; products that were skipped are None."""

    name: str
    folder: Path
    resolution: Resolution
    pins: tuple[Pin, ...]  # as they stand in environment.yml
    lock: Lock
    prefix: Prefix
    image: Image | None
    kernel: Kernel | None
    smoke: tuple[SmokeResult, ...]
    failed: tuple[str, ...] = ()  # one sentence for each check that failed
    stages: tuple[StageRecord, ...] = field(default=())
    # The settings of uv and pip that decided where wheels came from, if the lock was made now.
    index_settings: tuple[str, ...] | None = None

    @property
    def changed_nothing(self) -> bool:
        """Whether every product was there already, as requested."""
        return all(record.status != "made" for record in self.stages)


@frozen
class EnvironmentOutcome:
    """The outcome for one environment of many."""

    name: str
    status: Literal["made", "kept", "solved", "failed"]  # solved: with --dry-run
    detail: str
    seconds: float = 0.0
    exit_code: int = 0  # what the verb would have ended with for this environment alone


@frozen
class ListedJob:
    """A launched job, or the part of one on a host without a scheduler. time: used and its limit;
    empty where it is unknown. where: its nodes, or why it has none. advice: what to do about that."""

    id: str
    name: str
    state: str
    nodes: int
    time: str = ""
    where: str
    advice: str = ""


class Meter(Protocol):
    """A running progress display of one piece of work."""

    def advance(self, amount: int) -> None: ...


MeterContext = AbstractContextManager[Meter]


class Progress(Protocol):
    """How a stage reports to the person watching. The console implements it; stages never print."""

    def info(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def meter(self, title: str, total: int) -> MeterContext:
        """total: 0 if nobody knows how much there is to do."""
