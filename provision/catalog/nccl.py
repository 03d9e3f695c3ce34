"""NCCL as a separate package: the versions on conda-forge."""

from __future__ import annotations

from provision.catalog.facts import cached, facts_table
from provision.catalog.releases import version_key


@cached
def nccl_on_conda_forge(cuda: str) -> tuple[str, ...]:
    """The versions that were built for a CUDA of the same major version, with all of which they run;
    oldest first."""
    major = version_key(cuda)[0]
    builds = facts_table("nccl")["builds"]
    majors = {
        version: {version_key(built_with)[0] for built_with in builds[version]}
        for version in sorted(builds, key=version_key)
    }
    return tuple(version for version in majors if major in majors[version])
