"""Which process of this host listens on a port."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from . import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The state of a listening socket in /proc/net/tcp.
LISTENING = "0A"


def listener(port: int) -> str:
    """The command line and id of the process that listens on a port of this host; empty if it
    belongs to another user."""
    inodes = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    for folder in processes.PROC.glob("[0-9]*"):
        if inodes.intersection(_open_files(folder)):
            return f"{processes.command_line(int(folder.name))} (process {folder.name})"
    return ""


def _open_files(process: Path) -> Iterator[str]:
    """The targets of a process's file descriptors. Any of them, and the process itself, may
    vanish meanwhile."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(process / "fd" / entry)


def listening_inodes(port: int) -> list[str]:
    inodes = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (processes.PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.append(fields[9])
    return inodes
