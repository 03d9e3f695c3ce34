"""NCCL outside of torch: what conda-forge and the package index have of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from provision.catalog.loading import load
from provision.catalog.versions import version_key


@dataclass(frozen=True, kw_only=True)
class CondaForgeNccl:
    """One NCCL version on conda-forge. It runs with every minor version of the CUDA majors that it was built for."""

    version: str
    cuda: tuple[str, ...]  # CUDA versions that it was built with
    source: str

    def runs_with(self, cuda: str) -> bool:
        major = version_key(cuda)[0]
        return any(version_key(built)[0] == major for built in self.cuda)


@functools.cache
def nccl_on_conda_forge() -> dict[str, CondaForgeNccl]:
    """NCCL version -> what conda-forge has of it, oldest first."""
    table = load("nccl.yml")["nccl"]
    ordered = sorted(table["builds"].items(), key=lambda item: version_key(item[0]))
    return {
        version: CondaForgeNccl(version=version, cuda=tuple(cuda), source=table["source"])
        for version, cuda in ordered
    }


@functools.cache
def cuda_versions() -> tuple[str, ...]:
    """Releases of conda-forge's cuda-version, oldest first."""
    return tuple(load("nccl.yml")["cuda_version"]["versions"])


@functools.cache
def nccl_wheels() -> dict[str, tuple[str, ...]]:
    """nvidia-nccl-cuXY -> versions that the package index has, oldest first."""
    return {name: tuple(row["versions"]) for name, row in load("nccl.yml")["nccl_wheels"].items()}
