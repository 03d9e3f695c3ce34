"""Which finding an error of the target folder is.

Shared by the phases filesystem and checkpoint, so that the same fault has the same id in both.
"""

from __future__ import annotations

import errno

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GONE = (errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN, errno.ESHUTDOWN)
# After any of these findings the folder is unusable, and later checks in it would prove nothing.
FATAL = ("folder-unwritable", "disk-full", "folder-unmounted", "folder-not-shared", "folder-error")
# An operation on a small file that takes longer than this is reported as slow.
SLOW_S = 5.0


def finding_id(number: int | None) -> str:
    """The finding for an errno."""
    if number in UNWRITABLE:
        return "folder-unwritable"
    if number in FULL:
        return "disk-full"
    if number in GONE:
        return "folder-unmounted"
    return "folder-error"


def describe(operation: str, folder: object, error: OSError) -> str:
    """The same text on every rank, so that equal findings merge: it names the folder, not the
    file of one rank."""
    return f"{operation} in {folder}: {error.strerror or error}"
