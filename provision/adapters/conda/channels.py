"""Channels by name or URL, and conda's name for the machine we run on."""

from __future__ import annotations

import functools
import platform

from provision.core.errors import InvalidSpec
from provision.core.mirrors import ALL_CHANNELS
from provision.core.types import Platform

_PLATFORMS: dict[tuple[str, str], Platform] = {
    ("Linux", "x86_64"): "linux-64",
    ("Linux", "aarch64"): "linux-aarch64",
}


def host_platform() -> Platform | None:
    """The platform of this machine; None if none of our environments can run on it."""
    return _PLATFORMS.get((platform.system(), platform.machine()))


@functools.cache
def channel_url(channel: str) -> str:
    """A channel's own URL, which ends with a slash, by rattler's rules: names under its alias,
    paths as file URLs.

    For `*`, the alias.
    """
    import rattler

    if channel == ALL_CHANNELS:
        return channel_url("conda-forge").removesuffix("conda-forge/")
    try:
        return rattler.Channel(channel).base_url.rstrip("/") + "/"
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InvalidSpec(f"`{channel}` is not a channel: {reason}.") from error
