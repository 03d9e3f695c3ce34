"""What both kinds of stores share. Nothing here imports torch."""

from __future__ import annotations

from typing import Hashable, NamedTuple

from .. import layout
from ..errors import DamagedFile

LATEST_PROBLEM = (
    "its content is not what a save wrote (load a step by its number, "
    'or pass on_damage="previous"; the next save replaces the file)'
)


class Stat(NamedTuple):
    """A file of a store: its bytes, how many names it has in the whole store, and a key that exactly
    these names share.
    """

    size: int
    names: int
    key: Hashable


def parse_latest(content: bytes, root: str) -> str:
    """The folder that the content of `latest` names. Raises DamagedFile if no save wrote it."""
    folder = layout.pointed_to(content)
    if folder is None:
        raise DamagedFile(f"{root}/{layout.LATEST}", LATEST_PROBLEM)
    return folder
