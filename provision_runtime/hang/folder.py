"""What the hook in ranks and those who ask them agree on: a signal, a variable, and files in one
folder per user, a few of each process.

    NAME.rank    who it is: a line each of rank, world size, local rank, job, parent
    NAME.stacks  all stacks, whenever the signal of the hook arrives or the process crashes
    NAME.error   the exception that ended it, as JSON
    NAME.ended   it came to its end by itself
    NAME.calls   the record of its collectives

NAME is the number of the process and the time it started (/proc/PID/stat), so that a number that is
used again is another NAME.
"""

from __future__ import annotations

import os
import stat
import time

KEEP_S = 24 * 3600.0
# The signal on which faulthandler writes NAME.stacks. A real-time signal (SIGRTMAX - 3), because
# programs and schedulers use SIGUSR1 and SIGUSR2. A number: `signal` takes longer to import than the
# whole hook.
SIGNAL = 61
# The variable that switches NAME.calls on.
RECORD = "PROVISION_RECORD"


def rank_folder(user: int | None = None) -> str:
    """The folder of a user. The same for all jobs: TMPDIR and XDG_RUNTIME_DIR differ between a job and
    the shell that asks."""
    return f"/tmp/provision-{os.getuid() if user is None else user}-ranks"


def is_private(folder: str, user: int) -> bool:
    """Whether it is a folder, no link, that only this user may read and write."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == user
    return is_own and not status.st_mode & 0o077


def ensure_folder() -> str:
    """This user's folder. Raises OSError if others could write there, or read it.

    /tmp is sticky: no other user can replace a folder of ours. One that another user made first is
    never used.
    """
    folder = rank_folder()
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    if not is_private(folder, os.getuid()):
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def process_name(pid: int) -> str:
    """NAME of a process. Raises OSError if it is gone."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return f"{pid}-{file.read().rpartition(b')')[2].split()[19].decode()}"


def root_of(pid: int) -> str:
    """What precedes a path of a process, which may be in a container; empty if it may not be read."""
    root = f"/proc/{pid}/root"
    return root if os.path.exists(f"{root}/tmp") else ""


def stem_of(pid: int) -> str:
    """The path of a process's files, without a suffix. Raises OSError if it is gone."""
    user = os.stat(f"/proc/{pid}").st_uid
    return f"{root_of(pid)}{rank_folder(user)}/{process_name(pid)}"


def remove_old_files(folder: str) -> None:
    """Remove what was written a day ago or longer by processes that have ended."""
    oldest = time.time() - KEEP_S
    for name in os.listdir(folder):
        pid = name.partition("-")[0]
        path = os.path.join(folder, name)
        try:
            if os.lstat(path).st_mtime < oldest and not os.path.exists(f"/proc/{pid}"):
                os.unlink(path)
        except OSError:  # another process removes it
            continue
