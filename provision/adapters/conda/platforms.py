"""conda's name for the machine we run on."""

from __future__ import annotations

import platform

from provision.core.types import Platform

_BY_MACHINE: dict[tuple[str, str], Platform] = {
    ("Linux", "x86_64"): "linux-64",
    ("Linux", "aarch64"): "linux-aarch64",
}


def host_platform() -> Platform | None:
    """None: a machine that no environment of ours can run on."""
    return _BY_MACHINE.get((platform.system(), platform.machine()))
