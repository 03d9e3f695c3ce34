"""The names of things below the root of a run's checkpoints.

step-000000000042        a committed checkpoint: whoever sees the name sees all of it
step-000000000042.1      the same step, saved once more; the highest generation counts, the others are on their way out
step-000000000042.1-5f…  in stores without rename: written under its own name, committed once it has a manifest
latest                   the name of the checkpoint that was committed last, and the SHA-256 of that name
.tmp~...                 what a writer has not finished, or not finished removing; its name says who the writer is (in stores without
                         rename an object beside the folder that it writes, whose name it has in its own)
"""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
from typing import NamedTuple

from ..comm import processes

LATEST = "latest"
COMMITTED = re.compile(r"step-(\d{12,})(?:\.([1-9]\d*))?(?:-([0-9a-f]{12}))?")
TEMPORARY = ".tmp"
SEPARATOR = "~"
SPACE_DIGITS = 16
# Temporary names of this process that it could not take away; names are never used twice, so none of them is in use.
abandoned: set[str] = set()


class Name(NamedTuple):
    """Of a committed checkpoint. Sorted as the tuples are.

    token: keeps writers apart in stores where several can write under one name; "" where a rename does.
    """

    step: int
    generation: int
    token: str = ""

    def __str__(self) -> str:
        generation, token = (
            f".{self.generation}" if self.generation else "",
            f"-{self.token}" if self.token else "",
        )
        return f"step-{self.step:012d}{generation}{token}"


class Writer(NamedTuple):
    """Who made a temporary folder: process numbers are counted per boot and per container, so both are part of it."""

    host: str
    number: str
    started: str
    space: str

    def is_gone(self) -> bool:
        """Whether it has certainly ended. A writer of another host, boot or container cannot be seen from here, and on a file
        system that hosts share its folder's age says nothing about it: then False."""
        return self.state() == processes.GONE

    def state(self) -> str:
        """alive, stopped, gone, or unknown: then it is not a process that can be seen from here."""
        if (self.host, self.space) != (_host(), _space_digest()):
            return processes.UNKNOWN
        space = processes.own_identity()[0]
        return processes.state([space, self.number, self.started])


def parse(folder: str) -> Name | None:
    """None where the folder is not a committed checkpoint."""
    match = COMMITTED.fullmatch(folder)
    return (
        Name(int(match.group(1)), int(match.group(2) or 0), match.group(3) or "") if match else None
    )


def pointer(folder: str) -> bytes:
    """What `latest` holds. One flipped bit could make the name another checkpoint's, so its digest stands beside it."""
    return f"{folder} {hashlib.sha256(folder.encode()).hexdigest()}\n".encode()


def pointed_to(content: bytes) -> str | None:
    """The folder; None where the content is not what `pointer` makes of one."""
    folder = content.partition(b" ")[0].decode(errors="replace")
    return folder if parse(folder) and content == pointer(folder) else None


def new_token() -> str:
    """A token that nobody has."""
    return secrets.token_hex(6)


def temporary(what: str) -> str:
    """A new name for something that this process works on."""
    _, number, started = processes.own_identity()
    return SEPARATOR.join(
        (TEMPORARY, what, _host(), number, started, _space_digest(), secrets.token_hex(6))
    )


def target(temporary_name: str) -> str | None:
    """The checkpoint that the writer of a temporary name works on; None where it is none."""
    what = temporary_name.split(SEPARATOR)[1] if writer(temporary_name) else ""
    return what if parse(what) else None


def writer(folder: str) -> Writer | None:
    """Who made a temporary folder; None where the name is not one of ours."""
    fields = folder.split(SEPARATOR)
    if len(fields) != 7 or fields[0] != TEMPORARY or not fields[3].isdigit():
        return None
    return Writer(*fields[2:6])


def is_leftover(folder: str) -> bool:
    """Whether a temporary folder is certainly nobody's any more."""
    made_by = writer(folder)
    return folder in abandoned or (made_by is not None and made_by.is_gone())


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())


def _space_digest() -> str:
    return hashlib.sha256(processes.own_identity()[0].encode()).hexdigest()[:SPACE_DIGITS]
