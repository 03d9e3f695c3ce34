"""Where provision keeps its files on this machine, and the names of an environment's own files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# In an environment's folder: what its user writes, and what we make of it for the solvers.
SPEC = "spec.yml"
ENVIRONMENT = "environment.yml"
VIRTUAL_PACKAGES = "virtual-packages.yml"


@dataclass(frozen=True, kw_only=True)
class Folders:
    """data: products in use (prefixes, images, channels). cache: what can be downloaded again.
    envs: a lab's own environments. templates: a lab's own templates of generated files, if it has
    any."""

    data: Path
    cache: Path
    envs: Path
    templates: Path | None = None

    @property
    def prefixes(self) -> Path:
        return self.data / "prefixes"

    @property
    def images(self) -> Path:
        return self.data / "images"

    @property
    def packed(self) -> Path:
        """The same images with compressed layers."""
        return self.data / "packed"

    @property
    def packs(self) -> Path:
        """Environments as one file each, for the nodes of a cluster."""
        return self.data / "packs"

    @property
    def channels(self) -> Path:
        return self.data / "channels"

    def smoke(self, name: str) -> Path:
        """What the latest smoke tests of an environment left: reports, logs, baselines."""
        return self.data / "smoke" / name

    @property
    def pulled(self) -> Path:
        """Images from registries: base images, and what interrupted pulls left."""
        return self.cache / "pulled-images"

    @property
    def packages(self) -> Path:
        return self.cache / "conda-packages"


def default_folders(envs: Path | None = None) -> Folders:
    """The user's folders by the platform's convention (XDG on Linux); PROVISION_DATA and
    PROVISION_CACHE move them."""
    import platformdirs

    data = os.environ.get("PROVISION_DATA") or platformdirs.user_data_path("provision")
    cache = os.environ.get("PROVISION_CACHE") or platformdirs.user_cache_path("provision")
    envs = Path(envs or os.environ.get("PROVISION_ENVS") or "envs")
    return Folders(
        data=Path(data).absolute(),
        cache=Path(cache).absolute(),
        envs=envs.absolute(),
        templates=Path("templates").absolute(),
    )
