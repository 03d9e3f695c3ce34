"""The names below the root of a run's checkpoints.

step-000000000042        a committed checkpoint: it is whole as soon as the name is visible
step-000000000042.1      the same step, saved again; the highest generation counts, the others will
                         be removed
latest                   the name of the checkpoint that was committed last, and its SHA-256
.tmp~...                 what a writer has not finished writing or removing; the name identifies the
                         writer
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
COMMITTED = re.compile(r"step-(\d{12,})(?:\.([1-9]\d*))?")
TEMPORARY = ".tmp"
SEPARATOR = "~"
NAMESPACE_DIGITS = 16
# Temporary names that this process failed to remove. Names are never used twice, so none is in use.
abandoned: set[str] = set()
# Roots in which this process found damage: the next save there links nothing.
damaged: set[str] = set()


class CheckpointName(NamedTuple):
    """The name of a committed checkpoint. Sorts in the order of steps and generations."""

    step: int
    generation: int

    def __str__(self) -> str:
        text = f"step-{self.step:012d}"
        return f"{text}.{self.generation}" if self.generation else text


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
    return CheckpointName(int(match[1]), int(match[2] or 0))


def next_generation(folders: Iterable[str], step: int) -> int:
    """A generation of the step that no folder has."""
    generations = [name.generation for name in map(parse, folders) if name and name.step == step]
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


def temporary(purpose: str) -> str:
    """A new name for something that this process works on."""
    _, number, started = processes.this_process()
    fields = (
        TEMPORARY,
        purpose,
        _host(),
        number,
        started,
        _namespace_digest(),
        secrets.token_hex(6),
    )
    return SEPARATOR.join(fields)


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
