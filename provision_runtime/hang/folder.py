"""What the hook in ranks and those who ask them agree on: a signal, variables, and files in one folder
per user, a few of each rank.

    NAME.stacks  its folder; below, all stacks when the signal arrives or the process crashes
    NAME.error   the exception that ended it, as JSON; NAME.PID.error of a process that it started
    NAME.ended   it came to its end by itself
    NAME.calls   the record of its collectives
    flight-recorder-PID-RANK   torch's dump, and .pipe, by which it is asked. PID: of the job's process

NAME has the numbers of a rank (`model.Rank`), the time when its process started, and the job.

The hook imports this module: `__future__` would be a fifth of its time.
"""

import os
import stat
import time

KEEP_S = 24 * 3600.0
# More is not read of a file.
MAX_BYTES = 64 << 20
# SIGRTMAX - 3: programs and schedulers use SIGUSR1 and SIGUSR2. A number, because `signal` takes longer
# to import than the whole hook.
SIGNAL = 61
# The variable that switches NAME.calls on; and that which has the path of NAME, also for processes
# that the rank starts.
RECORD, RANK_FILES = "PROVISION_RECORD", "PROVISION_RANK_FILES"


def rank_folder(user: "int | None" = None) -> str:
    """The folder of a user. The same for all jobs: TMPDIR and XDG_RUNTIME_DIR differ between a job and
    the shell that asks."""
    return f"/tmp/provision-{os.getuid() if user is None else user}-ranks"


def ensure_folder() -> str:
    """This user's folder, readable by no other. Raises OSError if it is anything else.

    /tmp is sticky: no other user can replace a folder of ours. One that another user made first is
    never used.
    """
    folder = rank_folder()
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(folder)
    if status.st_uid != os.getuid() or status.st_mode != stat.S_IFDIR | 0o700:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def read(path: str, offset: int = 0) -> bytes:
    """A file of a rank. Raises OSError; also for a link, a pipe or a device, since root asks about
    the ranks of others, in folders that these can write."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PermissionError(f"{path} is no regular file")
        file.seek(offset)
        return file.read(MAX_BYTES)


def start_time(pid: int) -> str:
    """When a process started: with it, a number that is used again is another process. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def age(pid: int) -> float:
    """Seconds since a process started; infinite if it is gone."""
    try:
        start = int(start_time(pid)) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return float("inf")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start


def remove_old_files(folder: str) -> None:
    """Remove what was written a day ago or longer, by ranks that have ended. Raises OSError."""
    for entry in os.scandir(folder):
        name = entry.name
        is_dump = name.startswith("flight-recorder-")
        pid = name.split("-")[2:3] if is_dump else name.split(",")[5:6]
        try:
            is_old = entry.stat().st_mtime < time.time() - KEEP_S
            if is_old and pid and not os.path.exists(f"/proc/{pid[0]}"):
                os.unlink(entry.path)
        except FileNotFoundError:  # another process removed it
            pass
