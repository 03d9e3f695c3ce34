"""Runs when Python starts in a rank (`provision_runtime.pth`), so that `provision why` can ask it.

Registers faulthandler on a signal and for crashes, with a file of its own; makes the process
traceable by its user where Yama allows only parents; writes down the exception that ends it. No
thread, and nothing is patched. Imports only what Python has loaded anyway, and not `__future__`.
"""

import atexit
import faulthandler
import os
import sys

from . import folder

TYPE_CHECKING = False  # `typing` costs a millisecond
if TYPE_CHECKING:
    from types import TracebackType

PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1  # linux/prctl.h
RANKS_PER_CLEANUP = 16
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def install() -> None:
    """Raises OSError if the folder cannot be used."""
    get, pid = os.environ.get, os.getpid()
    local_rank = get("LOCAL_RANK", "0")
    numbers = (
        get("RANK", local_rank),
        get("WORLD_SIZE", "1"),
        local_rank,
        get("LOCAL_WORLD_SIZE", "0"),
    )
    job = f"{get('MASTER_ADDR', '')}:{get('MASTER_PORT', '')}".replace("/", "")
    rank_files = get(folder.RANK_FILES, "")
    if os.path.basename(rank_files).startswith(f"{numbers[0]},"):
        _write_exceptions(f"{rank_files}.{pid}.error")
        return
    fields = (*numbers, str(os.getppid()), str(pid), folder.start_time(pid), job)
    rank_files = os.environ[folder.RANK_FILES] = f"{folder.ensure_folder()}/{','.join(fields)}"
    _write_exceptions(f"{rank_files}.error")
    # Open as long as the process. A file object would take longer to make.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    stacks = os.open(f"{rank_files}.stacks", flags, 0o600)
    os.write(stacks, os.fsencode(f"{os.getcwd()}\n"))
    faulthandler.register(folder.SIGNAL, stacks, all_threads=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(stacks)
    _allow_tracing()
    atexit.register(_end, rank_files, pid)
    if get(folder.RECORD):
        from . import record

        record.start(f"{rank_files}.calls")


def _allow_tracing() -> None:
    """Yama's mode 1 allows only a process's parents to trace it; other modes need no permission of
    ours, or accept none."""
    try:
        with open(YAMA, "rb") as file:
            is_restricted = file.read(1) == b"1"
    except OSError:
        return
    if is_restricted:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)


def _write_exceptions(path: str) -> None:
    """torch replaces sys.excepthook in init_process_group, and calls the one before it."""
    previous = sys.excepthook

    def write_error(
        kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None"
    ) -> None:
        try:
            from . import error_file

            error_file.write(path, error, trace)
        except Exception:  # the user must see his own exception, whatever happens here
            pass
        previous(kind, error, trace)

    sys.excepthook = write_error


def _end(rank_files: str, pid: int) -> None:
    if os.getpid() == pid:  # not a fork that ends as a program does
        try:
            open(f"{rank_files}.ended", "w").close()
            if pid % RANKS_PER_CLEANUP == 0:  # there may be thousands of files
                folder.remove_old_files(os.path.dirname(rank_files))
        except OSError:
            pass


try:
    install()
except OSError:  # no /tmp, a full disk, a folder of another user: train without
    pass
