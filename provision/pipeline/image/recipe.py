"""What decides the bytes of an image, and of each of its layers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.mirrors import without_credentials
from provision.model import Lock, LockedPackage, Resolution
from provision.pipeline.image import config, contents, oci
from provision.pipeline.image.bases import BaseImage
from provision.pipeline.image.contents import Entry

# Of the way from packages to a layer's bytes: raise it whenever the same packages give other bytes, or old layers would be used on.
LAYER_VERSION = 1


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
        return config.labels(self.resolution, self.lock, self.base.reference, self.base.digest, self.epoch)

    @property
    def digest(self) -> str:
        own = [(entry.path, entry.mode, hashlib.sha256(entry.content or b"").hexdigest()) for entry in self.own]
        known = {
            "base": self.base.diff_ids,
            "epoch": self.epoch,
            "labels": self.labels,
            "layers": LAYER_VERSION,
            "own": own,
            "variables": self.variables,
        }
        return hashlib.sha256(oci.canonical(known)).hexdigest()

    def made_of(self, group: str, packages: Iterable[LockedPackage]) -> str:
        """By what a layer of these packages can be known before it is made: equal for equal bytes, whichever environment it is of."""
        rows = sorted(_told(package) for package in packages)
        known = {
            "epoch": self.epoch,
            "group": group,
            "packages": rows,
            "prefix": contents.PREFIX,
            "python": self.resolution.python,
            "version": LAYER_VERSION,
        }
        return hashlib.sha256(oci.canonical(known)).hexdigest()


def _told(package: LockedPackage) -> list[str]:
    """A wheel is its hash. Of a conda package the lock's other words get into conda-meta; of a local channel's address only the end."""
    known = [package.manager, package.name, package.version, package.sha256]
    if package.manager == "pip":
        return known
    url = contents.without_folder(package.url, keep=2) if package.url.startswith("file:") else without_credentials(package.url)
    return [*known, package.build, package.md5 or "", url, *package.depends]
