"""All probes, and which of them serve a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    access,
    account,
    disks,
    fabric,
    gpus,
    imports,
    network,
    notebooks,
    packages,
    resources,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .machine import Machine
    from .probe import Probe

PROBES: tuple[Probe, ...] = (
    *gpus.PROBES,
    *packages.PROBES,
    *resources.PROBES,
    *network.PROBES,
    *fabric.PROBES,
    *disks.PROBES,
    *notebooks.PROBES,
    *access.PROBES,
    *account.PROBES,
    *imports.PROBES,
)


def select(machine: Machine, only: Sequence[str] = ()) -> list[Probe]:
    """The probes for this machine; with ids of findings, those that can report them."""
    probes = []
    for probe in PROBES:
        is_possible = machine.prefix is not None or not probe.needs_prefix
        is_requested = not only or bool(set(only) & set(probe.ids))
        if is_possible and is_requested and (machine.is_deep or not probe.deep):
            probes.append(probe)
    return probes
