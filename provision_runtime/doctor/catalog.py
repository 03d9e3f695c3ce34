"""All probes, and which of them serve a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.findings import PROBES as ROWS
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
from .probe import Probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .machine import Machine

_MODULES = (gpus, packages, resources, network, fabric, disks, notebooks, access, account)
PROBES = tuple(
    Probe(name=name, run=run, **ROWS[name])
    for module in _MODULES
    for name, run in module.PROBES.items()
)


def select(machine: Machine, only: Sequence[str] = ()) -> list[Probe]:
    """The probes for this machine; with ids of findings, those that can report them."""
    return [
        probe
        for probe in PROBES
        if (machine.prefix is not None or not probe.needs_prefix)
        and (not only or set(only) & set(probe.ids))
    ]
