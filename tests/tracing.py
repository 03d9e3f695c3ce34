"""A child process whose changes to one folder are counted, over all of its threads, and failed at the N-th: by SIGKILL before the
call is made, by an error instead of the call, or by a write that takes only half.

strace counts its injections per thread, and which thread makes which call is chance: so this is a small tracer of its own, on the
kernel's ptrace and seccomp. Linux on x86-64. Standard library only: it runs beside any torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

IS_POSSIBLE = sys.platform == "linux" and platform.machine() == "x86_64"

# From asm/unistd_64.h: the calls by which a folder's content, or what is durable of it, changes; and which argument says what.
ON_DESCRIPTOR = {
    1: "write",
    18: "pwrite64",
    20: "writev",
    74: "fsync",
    75: "fdatasync",
    77: "ftruncate",
    285: "fallocate",
    296: "pwritev",
}
ON_PATHS = {  # number: (name, places of (folder's descriptor or None, path)); the last path is the one that is made
    82: ("rename", ((None, 0), (None, 1))),
    83: ("mkdir", ((None, 0),)),
    84: ("rmdir", ((None, 0),)),
    86: ("link", ((None, 0), (None, 1))),
    87: ("unlink", ((None, 0),)),
    88: ("symlink", ((None, 1),)),
    257: ("openat", ((0, 1),)),
    258: ("mkdirat", ((0, 1),)),
    263: ("unlinkat", ((0, 1),)),
    264: ("renameat", ((0, 1), (2, 3))),
    265: ("linkat", ((0, 1), (2, 3))),
    316: ("renameat2", ((0, 1), (2, 3))),
}
# Asked of the store, nothing changes: only failed by errors, where a test wants it.
READING = {0: "read", 17: "pread64", 137: "statfs", 217: "getdents64", 295: "preadv"}
WRITES = ("write", "writev", "pwrite64", "pwritev")

TRACEME, CONT, GETREGS, SETREGS, SETOPTIONS = 0, 7, 12, 13, 0x4200
# TRACEFORK, TRACEVFORK, TRACECLONE, TRACESECCOMP, EXITKILL: threads are followed, nothing outlives the tracer.
OPTIONS = 2 | 4 | 8 | 0x80 | 0x100000
SECCOMP_EVENT = 7
WALL = 0x40000000
AT_FDCWD = -100
RAX, RDX, ORIG_RAX = 10, 12, 15
ARGUMENTS = (14, 13, 12, 7, 9, 8)  # rdi rsi rdx r10 r8 r9, as places in user_regs_struct
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_TRACE, SECCOMP_RET_ALLOW = 0x7FF00000, 0x7FFF0000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


@dataclass(frozen=True)
class Fault:
    """At the `at`-th call, counted from 1, and, with `lasting`, at every later one. error: an errno; HALF: a short write;
    None: SIGKILL. calls: only these are counted."""

    at: int
    error: int | None = None
    lasting: bool = False
    calls: frozenset[str] | None = None


HALF = -1


@dataclass
class Traced:
    """calls: what was counted, as "name path"; is_reached: whether it came as far as the fault; status: as os.wait says it."""

    calls: list[str] = field(default_factory=list)
    is_reached: bool = False
    status: int = 0

    @property
    def was_killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


def run(
    action: Callable[[], None], folder: str, fault: Fault | None = None, *, reading: bool = False
) -> Traced:
    """The action, in a fork of this process. It ends with status 0, or 1 where the action raised. reading: count also what only reads."""
    child = os.fork()
    if child == 0:
        _be_traced(action, reading)
    traced = Traced()
    os.waitpid(child, WALL)
    _ptrace(SETOPTIONS, child, OPTIONS)
    _ptrace(CONT, child, 0)
    while True:
        thread, status = os.waitpid(-1, WALL)
        if thread == child and not os.WIFSTOPPED(status):
            traced.status = status
            return traced
        if os.WIFSTOPPED(status):
            if status >> 16 == SECCOMP_EVENT:
                _called(child, thread, folder, fault, traced, reading)
            received = os.WSTOPSIG(status)
            _ptrace(
                CONT,
                thread,
                0 if received in (signal.SIGTRAP, signal.SIGSTOP) else received,
                gone_is_fine=True,
            )


def _be_traced(action: Callable[[], None], reading: bool) -> None:
    status = 1
    try:
        _ptrace(TRACEME, 0, 0)
        _filter((*ON_DESCRIPTOR, *ON_PATHS, *(READING if reading else ())))
        os.kill(os.getpid(), signal.SIGSTOP)
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _filter(numbers: tuple[int, ...]) -> None:
    """Stop this process, and its threads to come, at these calls: a seccomp program that compares the call's number with each."""
    code = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load seccomp_data.nr
    code += [
        struct.pack("HBBI", 0x15, len(numbers) - place, 0, number)
        for place, number in enumerate(numbers)
    ]  # equal: jump to the end
    code += [
        struct.pack("HBBI", 0x06, 0, 0, SECCOMP_RET_ALLOW),
        struct.pack("HBBI", 0x06, 0, 0, SECCOMP_RET_TRACE),
    ]
    program_bytes = ctypes.create_string_buffer(b"".join(code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program_bytes))
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def _called(
    child: int, thread: int, folder: str, fault: Fault | None, traced: Traced, reading: bool
) -> None:
    registers = (ctypes.c_ulonglong * 27)()
    if _libc.ptrace(GETREGS, thread, None, ctypes.addressof(registers)):
        return  # killed meanwhile
    name, path = _what(child, registers)
    is_counted = (path + "/").startswith(folder + "/") and (reading or name != "open")
    if not is_counted or (fault and fault.calls and name not in fault.calls):
        return
    traced.calls.append(f"{name} {path[len(folder) + 1 :]}")
    at = len(traced.calls)
    if fault is None or at < fault.at or (at > fault.at and not fault.lasting):
        return
    if fault.error == HALF:
        if name not in WRITES:
            return
        _halve(child, name, registers)
    elif fault.error is None:
        traced.is_reached = True
        os.kill(child, signal.SIGKILL)
        return
    else:
        registers[ORIG_RAX] = registers[RAX] = (1 << 64) - 1  # no call
        registers[RAX] = (1 << 64) - fault.error
    traced.is_reached = True
    _ptrace(SETREGS, thread, ctypes.addressof(registers))


def _what(child: int, registers: ctypes.Array[ctypes.c_ulonglong]) -> tuple[str, str]:
    """Name and path of a call; of two paths the one that is made. No path for an openat that only reads."""
    number, arguments = registers[ORIG_RAX], [registers[place] for place in ARGUMENTS]
    if number in ON_PATHS:
        name, places = ON_PATHS[number]
        folder, place = places[-1]
        if name == "openat":
            name = "create" if arguments[2] & os.O_CREAT else "open"
        base = AT_FDCWD if folder is None else ctypes.c_int(arguments[folder]).value
        return name, _path(child, base, arguments[place])
    name = ON_DESCRIPTOR.get(number) or READING[number]
    if name == "statfs":
        return name, _path(child, AT_FDCWD, arguments[0])
    return name, _of_descriptor(child, ctypes.c_int(arguments[0]).value)


def _path(child: int, base: int, address: int) -> str:
    with Path(f"/proc/{child}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        text = memory.read(4096).split(b"\0", 1)[0].decode(errors="replace")
    return str(Path(_of_descriptor(child, base), text)) if base != AT_FDCWD else text


def _of_descriptor(child: int, number: int) -> str:
    try:
        return str(Path(f"/proc/{child}/fd/{number}").readlink())
    except OSError:
        return ""


def _halve(child: int, name: str, registers: ctypes.Array[ctypes.c_ulonglong]) -> None:
    """Have the kernel write half of what is asked; of a writev, half of its first part."""
    if name in ("write", "pwrite64"):
        registers[RDX] = max(registers[RDX] // 2, 1)
        return
    with Path(f"/proc/{child}/mem").open("rb", buffering=0) as memory:
        memory.seek(registers[ARGUMENTS[1]])
        start, size = struct.unpack("QQ", memory.read(16))
    registers[ORIG_RAX] = {"writev": 1, "pwritev": 18}[name]
    registers[ARGUMENTS[1]], registers[RDX] = start, max(size // 2, 1)


def _ptrace(request: int, process: int, value: int, *, gone_is_fine: bool = False) -> None:
    if _libc.ptrace(request, process, None, value) and not gone_is_fine:
        raise OSError(ctypes.get_errno(), f"ptrace request {request} failed")
