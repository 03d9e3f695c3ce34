"""The platforms that environments are made for, by conda's names (subdirs), and this machine's.

A module of its own, because `provision --help` needs these names and little else.
"""

from __future__ import annotations

import os
from typing import Literal

Platform = Literal["linux-64", "linux-aarch64"]
PLATFORMS: tuple[Platform, ...] = ("linux-64", "linux-aarch64")
PLATFORM: Platform = "linux-64"  # unless a spec names another
# As Go and images call their processors.
ARCHITECTURES: dict[Platform, str] = {"linux-64": "amd64", "linux-aarch64": "arm64"}
PLATFORM_OF: dict[str, Platform] = {name: platform for platform, name in ARCHITECTURES.items()}
_HOST_PLATFORMS: dict[tuple[str, str], Platform] = {
    ("Linux", "x86_64"): "linux-64",
    ("Linux", "aarch64"): "linux-aarch64",
}


def image_platform(platform: Platform) -> str:
    """A platform as images name it, e.g. linux/amd64."""
    return f"linux/{ARCHITECTURES[platform]}"


def image_folder(name: str, platform: Platform) -> str:
    """The folder of an environment's image: its name, and the platform unless it is this machine's."""
    return name if platform == build_platform() else f"{name}+{platform}"


def image_folders(name: str) -> tuple[str, ...]:
    """The folders of all images of an environment, this machine's first."""
    return (name, *(f"{name}+{platform}" for platform in PLATFORMS))


def build_platform() -> Platform:
    """The platform of images that this machine makes and fetches unless it is told another."""
    return host_platform() or PLATFORM


def host_platform() -> Platform | None:
    """The platform of this machine; None if none of our environments can run on it."""
    return _HOST_PLATFORMS.get((os.uname().sysname, os.uname().machine))
