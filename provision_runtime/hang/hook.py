"""Runs when Python starts in a rank (`provision_runtime.pth`), so that `provision why` can ask it.

Registers faulthandler on a signal and for crashes, with a file of its own; makes the process
traceable by its user where Yama allows only parents; writes down the exception that ends it. No
thread, and nothing is patched. Imports only what Python has loaded anyway.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys

from . import folder

TYPE_CHECKING = False  # `typing` costs a millisecond
if TYPE_CHECKING:
    from types import TracebackType

# The variable by which processes that a rank starts know that they are not the rank.
PARENT = "PROVISION_RANK_PROCESS"
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1  # linux/prctl.h
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def install() -> None:
    """Raises OSError if the folder cannot be used."""
    environ = os.environ
    name = os.path.join(folder.ensure_folder(), folder.process_name(os.getpid()))
    is_child = PARENT in environ and environ[PARENT].startswith(f"{environ.get('RANK')}:")
    if not is_child:
        environ[PARENT] = f"{environ.get('RANK')}:{os.getpid()}"
    identity = [environ.get(variable, "") for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    master = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    identity += [master, run_id, str(os.getppid()), str(int(is_child)), os.getcwd()]
    _write(f"{name}.rank", "\n".join(identity))
    _write_error_at_exception(f"{name}.error")
    if is_child:
        return
    stacks = open(f"{name}.stacks", "w")  # noqa: SIM115 - as long as the process
    faulthandler.register(folder.SIGNAL, stacks, all_threads=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(stacks)
    _allow_tracing()
    atexit.register(_end, name, os.getpid())
    if environ.get(folder.RECORD):
        from . import record

        record.start(f"{name}.calls")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _allow_tracing() -> None:
    """Yama's mode 1 allows only a process's parents to trace it; other modes need no permission of
    ours, or accept none."""
    try:
        with open(YAMA, "rb") as file:
            scope = file.read().strip()
    except OSError:
        return
    if scope == b"1":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)


def _write_error_at_exception(path: str) -> None:
    """torch replaces sys.excepthook in init_process_group, and calls the one before it."""
    previous = sys.excepthook

    def write_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            from . import error_file

            error_file.write(path, error, trace)
        except Exception:  # the user must see his own exception, whatever happens here
            pass
        previous(kind, error, trace)

    sys.excepthook = write_error


def _end(name: str, pid: int) -> None:
    if os.getpid() != pid:  # a fork that ends as a program does
        return
    try:
        _write(f"{name}.ended", "")
        folder.remove_old_files(os.path.dirname(name))
    except OSError:
        pass


try:
    install()
except OSError:  # no /tmp, a full disk, a folder of another user: train without
    pass
