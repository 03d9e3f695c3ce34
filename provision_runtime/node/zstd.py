"""Decompression with libzstd, which nearly every Linux has, even where the zstd command is missing:
dpkg, rpm and systemd use it. Python has none before 3.14.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import store_lock
from .errors import NodeError
from .store_files import write_all

CHUNK = 1 << 20


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer of zstd.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("position", ctypes.c_size_t),
    ]


def load_library() -> Any:
    """libzstd, or None if this machine has none."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    buffer = ctypes.POINTER(_Buffer)
    library.ZSTD_createDStream.restype = ctypes.c_void_p
    library.ZSTD_freeDStream.argtypes = [ctypes.c_void_p]
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    library.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, buffer, buffer]
    library.ZSTD_isError.argtypes = [ctypes.c_size_t]
    library.ZSTD_getErrorName.restype = ctypes.c_char_p
    library.ZSTD_getErrorName.argtypes = [ctypes.c_size_t]
    return library


def decompress(path: str, output: int) -> None:
    """Write the decompressed bytes of a file to a descriptor. Raises NodeError (no-method)."""
    library = load_library()
    if library is None:
        raise NodeError("no-method", "there is no libzstd")
    target = ctypes.create_string_buffer(CHUNK)
    stream = library.ZSTD_createDStream()
    try:
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(CHUNK), b""):
                source = _Buffer(
                    ctypes.cast(ctypes.c_char_p(chunk), ctypes.c_void_p), len(chunk), 0
                )
                is_drained = False
                while source.position < source.size or not is_drained:
                    decoded = _Buffer(ctypes.addressof(target), CHUNK, 0)
                    code = library.ZSTD_decompressStream(
                        stream, ctypes.byref(decoded), ctypes.byref(source)
                    )
                    if library.ZSTD_isError(code):
                        problem = library.ZSTD_getErrorName(code).decode()
                        raise NodeError("no-method", f"{path}: {problem}")
                    write_all(output, memoryview(target)[: decoded.position])
                    # A full buffer may mean that more of this input is still inside.
                    is_drained = decoded.position < CHUNK
                store_lock.require_caller()
    finally:
        library.ZSTD_freeDStream(stream)
