"""`provision status`: this machine at a glance: GPUs, container engine, disk, environments."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from provision import __version__, catalog
from provision.catalog import Edition
from provision.core import host
from provision.core.dataclass import frozen
from provision.core.paths import nearest_existing
from provision.core.types import HostGpus
from provision.workflow.context import Context
from provision.workflow.environments import Environment, environments_of_all


@frozen
class DataDisk:
    """A folder of provision's, the bytes in it, and those free on its disk."""

    path: Path
    free: int
    total: int


@frozen
class MachineStatus:
    """What `provision status` says.

    engine: the version of the Docker engine that answers, or empty; no_engine: why none does.
    """

    provision: str
    host: str
    python: str
    platform: str
    machine: HostGpus
    engine: str
    no_engine: str
    data: DataDisk
    envs: Path
    environments: tuple[Environment, ...]
    facts: Edition


def machine_status(context: Context) -> MachineStatus:
    """Asks nvidia-smi and the Docker engine; asks no network."""
    from provision.adapters.docker import engine_version

    engine, no_engine = engine_version()
    data = context.folders.data
    system = os.uname()
    usage = shutil.disk_usage(nearest_existing(data))
    return MachineStatus(
        provision=__version__,
        host=system.nodename,
        python=".".join(map(str, sys.version_info[:3])),
        platform=f"{sys.platform} {system.machine}",
        machine=host.this_machine(),
        engine=engine or "",
        no_engine=no_engine or "",
        data=DataDisk(path=data, free=usage.free, total=usage.total),
        envs=context.folders.envs,
        environments=tuple(environments_of_all(context)),
        facts=catalog.edition(),
    )
