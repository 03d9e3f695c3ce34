"""The platforms that environments are made for, by conda's names (subdirs), and this machine's.

A module of its own, because `provision --help` needs these names and little else.
"""

from __future__ import annotations

from typing import Literal

Platform = Literal["linux-64", "linux-aarch64"]
PLATFORMS: tuple[Platform, ...] = ("linux-64", "linux-aarch64")
PLATFORM: Platform = "linux-64"  # unless a spec names another
_HOST_PLATFORMS: dict[tuple[str, str], Platform] = {
    ("Linux", "x86_64"): "linux-64",
    ("Linux", "aarch64"): "linux-aarch64",
}


def host_platform() -> Platform | None:
    """The platform of this machine; None if none of our environments can run on it."""
    import platform

    return _HOST_PLATFORMS.get((platform.system(), platform.machine()))
