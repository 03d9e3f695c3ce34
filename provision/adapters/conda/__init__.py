"""The one door to py-rattler: what channels serve, solving, fetching and linking packages, indexing a folder as a channel.

Callers see plain values (`LockedPackage`, paths); rattler's types stay in here. Everything that rattler does in Rust threads is
awaited to its end, so a returned function has nothing in flight.
"""

from provision.adapters.conda.channels import channel_url
from provision.adapters.conda.install import index_channel, install_packages
from provision.adapters.conda.matchspec import (
    is_version,
    pins_build,
    spec_errors,
    spec_name,
    without_build,
    without_version,
)
from provision.adapters.conda.platforms import host_platform
from provision.adapters.conda.published_rows import RepodataRow, published_rows, read_archive_row
from provision.adapters.conda.repodata import ChannelRecord, ChannelRecords
from provision.adapters.conda.satisfaction import PackageBuild, is_newer, unsatisfied_specs
from provision.adapters.conda.solver import Solver, SolveRequest, solve

__all__ = [
    "ChannelRecord",
    "ChannelRecords",
    "PackageBuild",
    "RepodataRow",
    "SolveRequest",
    "Solver",
    "channel_url",
    "host_platform",
    "index_channel",
    "install_packages",
    "is_newer",
    "is_version",
    "pins_build",
    "published_rows",
    "read_archive_row",
    "solve",
    "spec_errors",
    "spec_name",
    "unsatisfied_specs",
    "without_build",
    "without_version",
]
