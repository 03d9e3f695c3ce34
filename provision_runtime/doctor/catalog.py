"""All probes, and which of them serve a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    access,
    account,
    disks,
    fabric,
    gpus,
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
)


def select(machine: Machine, only: Sequence[str] = ()) -> list[Probe]:
    """The probes for this machine; with ids of findings, those that can report them."""
    return [
        probe
        for probe in PROBES
        if (machine.prefix is not None or not probe.needs_prefix)
        and (not only or set(only) & set(probe.ids))
    ]
