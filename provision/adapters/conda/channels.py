"""Channels by name or URL."""

from __future__ import annotations

import functools

from provision.core.errors import InvalidSpec
from provision.core.mirrors import ALL_CHANNELS


@functools.cache
def channel_url(channel: str) -> str:
    """A channel's own URL, with a slash at its end, by rattler's rules: names under its alias, paths as file URLs. Of `*`: that alias."""
    import rattler

    if channel == ALL_CHANNELS:
        return channel_url("conda-forge").removesuffix("conda-forge/")
    try:
        return rattler.Channel(channel).base_url.rstrip("/") + "/"
    except Exception as error:
        raise InvalidSpec(
            f"`{channel}` is not a channel: {' '.join(str(error).split())}."
        ) from error
