"""How large a tree of files is, and how much of the disk its removal would free.

Prefixes share their files with the caches by hard links. Removing such a prefix frees little until
the cache is cleaned too, and the user should know that before.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from provision.core.dataclass import frozen


@frozen
class DiskUsage:
    """Bytes of a tree. Each file counts once, however many names it has in the tree.

    size: of all its files. freed: of the files that have no other name outside of the tree.
    """

    size: int
    freed: int


def measure(path: Path) -> DiskUsage:
    """The usage of a file or of a tree. What cannot be read, or vanishes meanwhile, counts zero."""
    size = 0
    freed = 0
    names: dict[tuple[int, int], int] = {}
    pending = [os.fspath(path)]
    while pending:
        current = pending.pop()
        try:
            status = os.lstat(current)
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(current) as entries:
                    pending += [entry.path for entry in entries]
                continue
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        identity = (status.st_dev, status.st_ino)
        names[identity] = names.get(identity, 0) + 1
        if names[identity] == 1:
            size += status.st_size
        if names[identity] == status.st_nlink:
            freed += status.st_size
    return DiskUsage(size=size, freed=freed)
