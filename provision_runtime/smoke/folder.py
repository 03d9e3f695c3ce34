"""The target folder at fault: which finding an error of the file system is, and how a user may rehearse it.

Shared by the phases filesystem and checkpoint, so that one fault has one name.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GONE = (errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN, errno.ESHUTDOWN)
# After any of these the folder is of no use, and nothing that comes later in it would prove anything.
FATAL = ("folder-unwritable", "disk-full", "folder-unmounted", "folder-not-shared", "folder-error")
# What each fault that may be rehearsed is in reality.
REHEARSED = {"unwritable": errno.EROFS, "disk-full": errno.ENOSPC, "unmounted": errno.ESTALE}
# Longer than what is called slow.
SLOW_S = 5.0
REHEARSED_DELAY_S = 5.2


def finding_id(number: int | None) -> str:
    """Of an errno."""
    for name, numbers in (
        ("folder-unwritable", UNWRITABLE),
        ("disk-full", FULL),
        ("folder-unmounted", GONE),
    ):
        if number in numbers:
            return name
    return "folder-error"


def in_words(what: str, folder: object, error: OSError) -> str:
    """The same words on every rank: a file of one rank's own is not in them."""
    return f"{what} in {folder}: {error.strerror or error}"


def rehearse(session: Session, *kinds: str) -> None:
    """Fail as the system would, where the user asked for it on this rank."""
    for kind in kinds:
        if session.options.fault(kind, session.place.rank):
            raise OSError(REHEARSED[kind], os.strerror(REHEARSED[kind]))


def rehearse_delay(session: Session) -> None:
    if session.options.fault("slow-folder", session.place.rank):
        time.sleep(REHEARSED_DELAY_S)
