"""Channels by name or URL, and the one place where their addresses are mapped. A lock names each package by its channel's own
URL; from where records and bytes really come is this machine's affair and never enters a lock.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Protocol

from provision.errors import InvalidSpec


class Mirrors(Protocol):
    """Where what lies under an address is really fetched from. Addresses of channels end with a slash."""

    def real(self, url: str) -> str: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Alias:
    """One place that serves every channel that is known by its name alone; without one, everything is where its address says."""

    alias: str | None = None

    def real(self, url: str) -> str:
        home = url_of("conda-forge").removesuffix("conda-forge/")
        return url_of(self.alias) + url[len(home) :] if self.alias and url.startswith(home) else url


DIRECT = Alias()


@functools.cache
def url_of(channel: str) -> str:
    """A channel's own URL, with a slash at its end, by rattler's rules: names under its alias, paths as file URLs."""
    import rattler

    try:
        return rattler.Channel(channel).base_url.rstrip("/") + "/"
    except Exception as error:
        raise InvalidSpec(f"`{channel}` is not a channel: {' '.join(str(error).split())}.") from error


def without_login(url: str) -> str:
    """The same address without user name and password: what may stand in a file."""
    return re.sub(r"://[^/@\s]*@", "://", url)
