"""What a kind of store can do, as data: each backend states it, and the documentation's table is of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Hashable, NamedTuple


@dataclass(frozen=True)
class Traits:
    """rename: a folder becomes visible by one rename; without it, by its manifest, which is written last.

    links: how an unchanged file becomes part of the next checkpoint, as a second name ("hard") or by a reference to the older
    folder ("reference"). sync: what was written survives a power cut only once it was synced. shared: other processes see it.
    block: how many bytes are best read at a time, when all of a file is.
    """

    rename: bool
    links: str
    sync: bool
    shared: bool
    block: int


class Stat(NamedTuple):
    """A file of a store. names: how many it goes by, in the whole store; key: the same for all of them, and for no other file."""

    size: int
    names: int
    key: Hashable
