"""The names below the root of a run's checkpoints.

step-000000000042        a committed checkpoint: it is whole as soon as the name is visible
step-000000000042.1      the same step, saved again; the highest generation counts, the others will
                         be removed
step-000000000042.1-5f…  in stores without rename: written under its final name, committed once it
                         has a manifest
latest                   the name of the checkpoint that was committed last, and its SHA-256
.tmp~...                 what a writer has not finished writing or removing; the name identifies the
                         writer (in stores without rename: an object next to the folder that it
                         writes, and with that folder's name in its own)
"""

from __future__ import annotations

import hashlib
import operator
import re
import secrets
import socket
from collections.abc import Iterable
from typing import NamedTuple

from ..comm import processes

LATEST = "latest"
COMMITTED = re.compile(r"step-(\d{12,})(?:\.([1-9]\d*))?(?:-([0-9a-f]{12}))?")
TEMPORARY = ".tmp"
SEPARATOR = "~"
NAMESPACE_DIGITS = 16
# Temporary names that this process failed to remove. Names are never used twice, so none is in use.
abandoned: set[str] = set()


class CheckpointName(NamedTuple):
    """The name of a committed checkpoint. Sorts in the order of steps and generations.

    token: distinguishes writers in stores without rename, where several could write under one name;
    else "".
    """

    step: int
    generation: int
    token: str = ""

    def __str__(self) -> str:
        text = f"step-{self.step:012d}"
        if self.generation:
            text += f".{self.generation}"
        if self.token:
            text += f"-{self.token}"
        return text


class FolderWriter(NamedTuple):
    """The process that made a temporary folder.

    Process numbers are counted per boot and per container, hence `namespace`.
    """

    host: str
    number: str
    started: str
    namespace: str

    def state(self) -> str:
        """alive, stopped or gone; unknown for a process of another host, boot or container.

        On a file system that hosts share, the age of a folder does not tell whether its writer is
        alive.
        """
        if (self.host, self.namespace) != (_host(), _namespace_digest()):
            return processes.UNKNOWN
        namespace = processes.this_process()[0]
        return processes.state([namespace, self.number, self.started])


def check_step(step: object) -> int:
    """Raises ValueError unless it is a whole number of 0 or more."""
    number = -1
    if hasattr(step, "__index__") and not isinstance(step, bool):
        number = operator.index(step)
    if number < 0:
        raise ValueError(f"step={step!r}: it must be a whole number of 0 or more")
    return number


def parse(folder: str) -> CheckpointName | None:
    """None if the folder is not a committed checkpoint."""
    match = COMMITTED.fullmatch(folder)
    if match is None:
        return None
    step, generation, token = match.groups()
    return CheckpointName(int(step), int(generation or 0), token or "")


def next_generation(folders: Iterable[str], step: int) -> int:
    """A generation of the step that no folder has."""
    names = map(parse, folders)
    generations = [name.generation for name in names if name is not None and name.step == step]
    return max(generations, default=-1) + 1


def pointer(folder: str) -> bytes:
    """The content of `latest`.

    With a digest: one flipped bit could make the name another checkpoint's.
    """
    return f"{folder} {hashlib.sha256(folder.encode()).hexdigest()}\n".encode()


def pointed_to(content: bytes) -> str | None:
    """The folder; None if the content is not what `pointer` makes."""
    folder = content.partition(b" ")[0].decode(errors="replace")
    return folder if parse(folder) and content == pointer(folder) else None


def new_token() -> str:
    return secrets.token_hex(6)


def temporary(purpose: str) -> str:
    """A new name for something that this process works on."""
    _, number, started = processes.this_process()
    fields = (TEMPORARY, purpose, _host(), number, started, _namespace_digest(), new_token())
    return SEPARATOR.join(fields)


def target(temporary_name: str) -> str | None:
    """The checkpoint that the writer of a temporary name works on; None if there is none."""
    if writer(temporary_name) is None:
        return None
    purpose = temporary_name.split(SEPARATOR)[1]
    return purpose if parse(purpose) else None


def writer(folder: str) -> FolderWriter | None:
    """Who made a temporary folder; None if the name is not one of ours."""
    fields = folder.split(SEPARATOR)
    if len(fields) != 7 or fields[0] != TEMPORARY or not fields[3].isdigit():
        return None
    return FolderWriter(*fields[2:6])


def is_leftover(folder: str) -> bool:
    """Whether the writer of a temporary folder has certainly ended or given it up."""
    if folder in abandoned:
        return True
    folder_writer = writer(folder)
    return folder_writer is not None and folder_writer.state() == processes.GONE


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())


def _namespace_digest() -> str:
    namespace = processes.this_process()[0]
    return hashlib.sha256(namespace.encode()).hexdigest()[:NAMESPACE_DIGITS]
