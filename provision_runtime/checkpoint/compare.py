"""Whether two memories, or a memory and a file, hold the same bytes: exact, and several times as
fast as SHA-256.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of two memories at a time: both fit the processor's cache, and the cost of a call (2 us) is small.
MEMORY_BLOCK = 512 << 10
# Of a file at a time. Each call releases the interpreter's lock and takes it again.
FILE_BLOCK = 1 << 20
# Linux; a file system without it answers EOPNOTSUPP.
NOWAIT = getattr(os, "RWF_NOWAIT", None)


def first_difference(first_address: int, second_address: int, length: int) -> int:
    """Offset of the first block that differs; the length if none does."""
    compare = _memcmp()
    at = 0
    while at < length:
        block = min(MEMORY_BLOCK, length - at)
        if compare(first_address + at, second_address + at, block):
            return at
        at += block
    return length


def has_cached(descriptor: int, offset: int, parts: Sequence[memoryview]) -> bool | None:
    """Whether the file has these bytes from `offset` on; None if a disk or a server would have to
    answer.

    Hashing is faster than waiting for these. The file is read, not mapped: a mapped page that a
    disk or a server fails to deliver ends the process (SIGBUS).
    """
    if NOWAIT is None:
        return None
    for part in parts:
        at = 0
        while at < len(part):
            buffer = _BUFFER.view[: len(part) - at]
            try:
                count = os.preadv(descriptor, [buffer], offset + at, NOWAIT)
            except OSError:
                return None
            if not count or not _equals_buffer(part[at : at + count], count):
                return False
            at += count
        offset += len(part)
    return True


class _ReadBuffer(threading.local):
    def __init__(self) -> None:
        self.memory = bytearray(FILE_BLOCK)
        self.view = memoryview(self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


_BUFFER = _ReadBuffer()


def _equals_buffer(part: memoryview, count: int) -> bool:
    if part.readonly:
        # ctypes does not give the address of bytes (objects, headers of archives).
        return bytes(part) == bytes(_BUFFER.view[:count])
    address = ctypes.addressof(ctypes.c_char.from_buffer(part))
    return not _memcmp()(address, _BUFFER.address, count)


def _memcmp() -> Any:
    """The C library's, called without the interpreter's lock."""
    function = ctypes.CDLL(None).memcmp
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function
