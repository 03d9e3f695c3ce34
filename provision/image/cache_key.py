"""What decides the bytes of an image, and of each of its layers. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from provision.catalog import version_key
from provision.core.mirrors import without_credentials
from provision.core.types import Lock, LockedPackage, Resolution
from provision.image import conda_files, config, layer_groups, oci_layout
from provision.image.base_images import BaseImage
from provision.image.conda_files import Entry

# Of the way from packages to a layer's bytes: raise it whenever the same packages give other bytes, or old layers would be used on.
LAYER_VERSION = 3

_GLIBC = re.compile(r"__glibc >=\s*(\d+(?:\.\d+)*)(?:,.*|\s.*)?")
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_OLD_MANYLINUX = re.compile(
    r"manylinux(?:1|2010|2014)_"
)  # 2.5, 2.12 and 2.17: older than any base that is of use


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides the bytes of an image; its packages by their lock. Two equal recipes give one digest."""

    resolution: Resolution
    lock: Lock
    base: BaseImage
    own: Sequence[Entry]
    epoch: int

    @property
    def variables(self) -> dict[str, str]:
        return config.environment(self.resolution, self.lock, self.base.environment)

    @property
    def labels(self) -> dict[str, str]:
        return config.labels(
            self.resolution, self.lock, self.base.reference, self.base.digest, self.epoch
        )

    @property
    def glibc(self) -> str:
        """The oldest glibc that the locked packages run with. This machine's Python, where it was packaged, may need a newer one than
        was asked for, and then wheels were chosen for that."""
        needed = [version for package in self.lock.packages for version in _glibc_of(package)]
        return max([self.resolution.glibc, *needed], key=version_key)

    @property
    def digest(self) -> str:
        own = [
            (entry.path, entry.mode, hashlib.sha256(entry.content or b"").hexdigest())
            for entry in self.own
        ]
        known = {
            "base": self.base.diff_ids,
            "config": config.image_config(self.variables, self.labels, (), self.epoch),
            "groups": [asdict(group) for group in layer_groups.GROUPS],
            "layers": LAYER_VERSION,
            "own": own,
        }
        return hashlib.sha256(oci_layout.canonical(known)).hexdigest()

    def made_of(
        self,
        group: str,
        packages: Iterable[LockedPackage],
        sharers: Iterable[LockedPackage] = (),
        clobbered: Mapping[str, Sequence[str]] | None = None,
    ) -> str:
        """By what a layer of these packages can be known before it is made: equal for equal bytes, whichever environment it is of.

        sharers: packages of other layers that decide what some of its files are. clobbered: files that conda packages lost to others.
        """
        packages = list(packages)
        conda = {package.name for package in packages if package.manager == "conda"}
        known = {
            "clobbered": {
                name: paths for name, paths in (clobbered or {}).items() if name in conda
            },
            "epoch": self.epoch,
            "group": group,
            "packages": sorted(_told(package) for package in packages),
            "prefix": conda_files.PREFIX,
            "python": self.resolution.python,
            "sharers": sorted(_told(package) for package in sharers),
            "version": LAYER_VERSION,
        }
        return hashlib.sha256(oci_layout.canonical(known)).hexdigest()


def _glibc_of(package: LockedPackage) -> list[str]:
    """By the needs of a conda package, or the name of a wheel."""
    if package.manager == "conda":
        return [match[1] for need in package.depends if (match := _GLIBC.fullmatch(need))]
    tags = [] if _OLD_MANYLINUX.search(package.filename) else _MANYLINUX.findall(package.filename)
    return [min((f"{major}.{minor}" for major, minor in tags), key=version_key)] if tags else []


def _told(package: LockedPackage) -> list[str]:
    """A wheel is its hash. Of a conda package the lock's other words get into conda-meta; of a local channel's address only the end."""
    known = [package.manager, package.name, package.version, package.sha256]
    if package.manager == "pip":
        return known
    url = (
        conda_files.without_folder(package.url, keep=2)
        if package.url.startswith("file:")
        else without_credentials(package.url)
    )
    return [*known, package.build, package.md5 or "", url, *package.depends]
