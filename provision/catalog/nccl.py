"""NCCL as a separate package: the versions on conda-forge."""

from __future__ import annotations

from provision.catalog.facts import cached, facts_table
from provision.catalog.releases import version_key
from provision.core.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class CondaForgeNccl:
    """One NCCL version on conda-forge. It runs with every minor version of the CUDA majors that it
    was built for."""

    version: str
    cuda: tuple[str, ...]  # CUDA versions that it was built with
    source: str

    def runs_with(self, cuda: str) -> bool:
        major = version_key(cuda)[0]
        return any(version_key(built_with)[0] == major for built_with in self.cuda)


@cached
def nccl_on_conda_forge() -> dict[str, CondaForgeNccl]:
    """The builds on conda-forge by NCCL version, oldest first."""
    table = facts_table("nccl")
    builds = {}
    for version in sorted(table["builds"], key=version_key):
        cuda = tuple(table["builds"][version])
        builds[version] = CondaForgeNccl(version=version, cuda=cuda, source=table["source"])
    return builds
