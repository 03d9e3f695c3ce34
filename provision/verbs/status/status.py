"""`provision status`: this machine at a glance: GPUs, container engine, disk, environments."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

from provision import __version__, catalog
from provision.catalog import Edition
from provision.core import disk_usage, host
from provision.core.dataclass import dataclass
from provision.core.paths import nearest_existing
from provision.core.types import HostGpus
from provision.workflow.context import Context
from provision.workflow.environments import Environment, environments_of_all


@dataclass(frozen=True, kw_only=True)
class DataDisk:
    """A folder of provision's, the bytes in it, and those free on its disk."""

    path: Path
    free: int
    total: int


@dataclass(frozen=True, kw_only=True)
class MachineStatus:
    """What `provision status` says.

    engine: the version of the Docker engine that answers, or empty; no_engine: why none does.
    packs_size: bytes of packs for nodes.
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
    packs_size: int
    facts: Edition


def machine_status(context: Context) -> MachineStatus:
    """Asks nvidia-smi and the Docker engine; asks no network."""
    engine, no_engine = _engine()
    return MachineStatus(
        provision=__version__,
        host=platform.node(),
        python=platform.python_version(),
        platform=f"{sys.platform} {platform.machine()}",
        machine=host.this_machine(),
        engine=engine,
        no_engine=no_engine,
        data=_data_disk(context.folders.data),
        envs=context.folders.envs,
        environments=tuple(environments_of_all(context)),
        packs_size=disk_usage.measure(context.folders.packs).size,
        facts=catalog.edition(),
    )


def _engine() -> tuple[str, str]:
    from provision.adapters.docker import connect_engine, engine_version

    client, reason = connect_engine()
    if client is None:
        return "", str(reason)
    try:
        return engine_version(client), ""
    finally:
        client.close()


def _data_disk(path: Path) -> DataDisk:
    """The disk that a folder is on, or will be on once it is created."""
    usage = shutil.disk_usage(nearest_existing(path))
    return DataDisk(path=path, free=usage.free, total=usage.total)
