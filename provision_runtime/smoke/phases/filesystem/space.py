"""Free space and inodes, and whether hard links work, which serve as locks where locks do not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .work import Work


def step(work: Work) -> None:
    work.data["space"] = work.attempt("asking for the free space", lambda: _space(work))
    work.data["hard_link"] = work.attempt("making a file", lambda: _links(work))


def _space(work: Work) -> dict[str, Any]:
    """What a user without privileges may still take; None where the file system does not count."""
    found = os.statvfs(str(work.root))
    return {
        "free_bytes": found.f_bavail * found.f_frsize if found.f_blocks else None,
        "free_inodes": found.f_favail if found.f_files else None,
    }


def _links(work: Work) -> bool:
    path = work.root / f"linked{work.rank}"
    path.touch()
    try:
        os.link(str(path), str(path.with_suffix(".link")))
    except OSError:
        return False
    return path.stat().st_nlink == 2
