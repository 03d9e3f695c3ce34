"""Whether memory holds what other memory, or a file, holds: exact, and several times as fast as SHA-256."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of two memories at a time, so that both fit the processor's cache; and what a call costs (2 us) is little beside.
BLOCK = 512 << 10
# Of a file at a time. Each call leaves the interpreter's lock to others and asks for it back.
READ = 1 << 20
# Linux; a file system without it answers EOPNOTSUPP.
NOWAIT = getattr(os, "RWF_NOWAIT", None)


def first_difference(new: int, held: int, length: int) -> int:
    """Where, from these two addresses on, the first block begins that is not the same in both; the length where there is none."""
    compare = _memcmp()
    at = 0
    while at < length and not compare(new + at, held + at, min(BLOCK, length - at)):
        at += BLOCK
    return min(at, length)


def has_cached(descriptor: int, offset: int, parts: Sequence[memoryview]) -> bool | None:
    """Whether the file has these bytes from `offset` on. None where only a disk or a server could tell: hashing is faster then.

    The file is read, not mapped: a mapped page that a disk or a server fails to give ends the process (SIGBUS).
    """
    if NOWAIT is None:
        return None
    for part in parts:
        at = 0
        while at < len(part):
            room = _OWN.room[: len(part) - at]
            try:
                count = os.preadv(descriptor, [room], offset + at, NOWAIT)
            except OSError:
                return None
            if not count or not _same(part[at : at + count], count):
                return False
            at += count
        offset += len(part)
    return True


class _Own(threading.local):
    """A thread's own room for what it reads."""

    def __init__(self) -> None:
        self.memory = bytearray(READ)
        self.room = memoryview(self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


_OWN = _Own()


def _same(part: memoryview, count: int) -> bool:
    """As what was read. Of bytes (objects, archives' headers) ctypes does not give the address."""
    if part.readonly:
        return bytes(part) == bytes(_OWN.room[:count])
    return not _memcmp()(ctypes.addressof(ctypes.c_char.from_buffer(part)), _OWN.address, count)


def _memcmp() -> Any:
    """The C library's, called without the interpreter's lock."""
    function = ctypes.CDLL(None).memcmp
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function
