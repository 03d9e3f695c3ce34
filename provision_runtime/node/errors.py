"""What goes wrong on a node, with the reason under which the host reports it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Failure

# The reason of a system error. provision/cluster/failures.py explains the reasons.
REASONS = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EROFS: "read-only",
    errno.EACCES: "permission-denied",
    errno.EPERM: "permission-denied",
    errno.ENOENT: "no-such-path",
    errno.ENOTDIR: "no-such-path",
    errno.ESTALE: "file-system",
    errno.EIO: "file-system",
    errno.ELOOP: "not-ours",  # a link in the place of a file of the store
}
OTHER = "system-error"


class NodeError(Exception):
    """An action failed on this node. reason: a key of provision/cluster/failures.py."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def describe(error: NodeError | OSError) -> Failure:
    failure = error if isinstance(error, NodeError) else of_system_error(error)
    return {"reason": failure.reason, "message": failure.message}


def of_system_error(error: OSError) -> NodeError:
    """The same error as a NodeError: reason by its number, message with its file."""
    reason = REASONS.get(error.errno or 0, OTHER)
    if reason == "disk-full" and error.filename and _has_no_inodes(str(error.filename)):
        reason = "no-inodes"
    message = error.strerror or str(error)
    return NodeError(reason, f"{error.filename}: {message}" if error.filename else message)


def _has_no_inodes(path: str) -> bool:
    """Whether the file system of a path, or of its nearest existing parent, has no free inode. The
    system reports that with the same number as a full disk."""
    while True:
        try:
            status = os.statvfs(path)
        except FileNotFoundError:
            path = os.path.dirname(path) or "."
            continue
        except OSError:
            return False
        return status.f_files > 0 and status.f_favail == 0
