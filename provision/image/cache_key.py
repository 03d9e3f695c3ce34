"""What decides the bytes of an image and of each of its layers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property

from provision.catalog import required_glibc
from provision.core import tar
from provision.core.dataclass import frozen
from provision.core.platforms import Platform
from provision.core.types import Layer, Lock, Resolution
from provision.image import config, oci_layout, own_files
from provision.image.base import BaseImage
from provision.image.code import Code
from provision.image.layer_groups import GROUPS
from provision.image.layers import LayerEntry
from provision.image.oci_layout import ImageConfig

# The version of the format in which packages become a layer's bytes. Raise it whenever the same
# packages give other bytes; otherwise builds reuse outdated layers.
LAYER_VERSION = 5
BUILT_ON_LABEL = "org.provision.built-on"


@frozen
class Recipe:
    """Everything that decides the bytes of an image; its packages by their lock. Two equal recipes
    give one digest. runtime: the files of the runtime package, by their paths below
    site-packages. epoch: the time of all files. created: that of the image. built_on: the platform
    of this machine, if it cannot run the image's programs."""

    resolution: Resolution
    lock: Lock
    base: BaseImage
    runtime: Mapping[str, bytes]
    code: Code | None = None
    epoch: int = tar.EPOCH
    created: int = tar.EPOCH
    built_on: Platform | None = None

    @cached_property
    def provision_files(self) -> Sequence[LayerEntry]:
        """The files that provision itself adds."""
        return own_files.provision_entries(self.runtime, self.resolution.python, self.lock.packages)

    @property
    def variables(self) -> dict[str, str]:
        return config.environment(self.resolution, self.lock, self.base.environment)

    @property
    def labels(self) -> dict[str, str]:
        labels = config.labels(
            self.resolution, self.lock, self.base.reference, self.base.digest, self.created
        )
        if self.built_on:
            labels |= {BUILT_ON_LABEL: self.built_on, "org.provision.byte-code": "none"}
        return labels | (self.code.labels if self.code else {})

    def config(self, image_layers: Sequence[Layer]) -> ImageConfig:
        """The OCI image config of these layers."""
        return config.image_config(
            self.variables, self.labels, image_layers, self.created, self.lock.platform
        )

    @property
    def glibc(self) -> str:
        return required_glibc(self.resolution, self.lock)

    @property
    def digest(self) -> str:
        return _digest_of(
            {
                "base": self.base.diff_ids,
                "code": _content(self.code.entries if self.code else ()),
                "config": self.config(()),
                "groups": [asdict(group) for group in GROUPS],
                "layers": LAYER_VERSION,
                "epoch": self.epoch,
                "own": _content(self.provision_files),
            }
        )

    @property
    def packages_digest(self) -> str:
        """Equal for equal package layers; known before packages are installed."""
        groups = [asdict(group) for group in GROUPS]
        return _digest_of([LAYER_VERSION, groups, self.lock.sha256, self.epoch, self.built_on])

    def layer_key(self, entries: Iterable[LayerEntry]) -> str:
        """The cache key of a layer: equal for equal bytes, in every environment."""
        return _digest_of([self.epoch, LAYER_VERSION, _content(entries)])


def _content(entries: Iterable[LayerEntry]) -> list[tuple[str, int, str, str]]:
    rows = []
    for entry in entries:
        sha256 = entry.sha256 or hashlib.sha256(entry.content or b"").hexdigest()
        rows.append((entry.path, entry.mode, entry.target, sha256))
    return rows


def _digest_of(document: object) -> str:
    return hashlib.sha256(oci_layout.canonical(document)).hexdigest()
