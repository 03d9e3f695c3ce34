"""The one door to py-rattler: what channels serve, solving, downloading and linking packages,
indexing a folder as a channel.

Callers see plain values (`LockedPackage`, paths); rattler's types stay in here. Everything that
rattler does in Rust threads is awaited to its end, so a function that has returned has nothing in
flight.
"""

from provision.adapters.conda.install import index_channel, install_packages
from provision.adapters.conda.matchspec import (
    as_wheel,
    channel_url,
    parse_requirement,
    spec_errors,
    spec_name,
    unsatisfied,
    without_version,
)
from provision.adapters.conda.repodata import (
    TORCH_PACKAGES,
    ChannelRecord,
    ChannelRecords,
)
from provision.adapters.conda.solver import Solver, SolveRequest
