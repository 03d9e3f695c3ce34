"""All ranks make the same folders at the same moment, as training code does that calls makedirs on every rank."""

from __future__ import annotations

import errno
import functools
import os
import time
from typing import TYPE_CHECKING

from ....fs import mounts
from ... import folder

if TYPE_CHECKING:
    from pathlib import Path

    from .work import Work

TURNS = 4
TURNS_QUICK = 2
# What makedirs with exist_ok raises where file systems let two makers into each other's way (Lustre, NFS, FUSE).
RACES = (errno.EEXIST, errno.ENOENT, errno.ESTALE)
PATIENCE = 20
PAUSE_S = 0.05


def step(work: Work) -> None:
    work.data["races"] = 0
    work.start = work.attempt("looking", lambda: _locate(work.target))
    work.attempt("making a folder", lambda: folder.rehearse(work.session, "unwritable"))
    for turn in range(TURNS_QUICK if work.session.options.quick else TURNS):
        work.meet(f"make {turn}")
        races = work.attempt(
            "making a folder", functools.partial(make, work.root / f"{turn}" / "deep" / "deeper")
        )
        work.data["races"] += races or 0


def _locate(target: Path) -> mounts.Location:
    """Opened first: looking at a folder's status does not mount what is mounted on demand (autofs), opening it does."""
    try:
        os.scandir(str(target)).close()
    except FileNotFoundError:
        pass
    return mounts.locate(target)


def make(path: Path) -> int:
    """How often it failed although it must not; the last error is raised."""
    for failures in range(PATIENCE):
        try:
            os.makedirs(str(path), exist_ok=True)
            return failures
        except OSError as error:
            if error.errno not in RACES:
                raise
        time.sleep(PAUSE_S)
    os.makedirs(str(path), exist_ok=True)
    return PATIENCE
