"""Compression with zstd: streams, which become the same bytes on any number of CPUs, and bytes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from provision.core.host import usable_cpus

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd as zstd
else:
    from compression import zstd as zstd

LEVEL = 3
MAX_THREADS = 16  # each holds some megabytes
# Memory to decompress with: what the zstd command accepts without further options (128 MiB).
WINDOW_LOG = 27


def compress_to(chunks: Iterable[bytes], target: Path | IO[bytes]) -> None:
    """Write a stream, to a path or an open file, as one zstd frame with a checksum.

    libzstd cuts a stream into jobs whose sizes do not depend on the number of threads, as long as
    there is at least one (not 0, its other way of working).
    """
    compressor = zstd.ZstdCompressor(
        options={
            zstd.CompressionParameter.compression_level: LEVEL,
            zstd.CompressionParameter.checksum_flag: 1,
            zstd.CompressionParameter.nb_workers: min(usable_cpus(), MAX_THREADS),
        }
    )
    opened = target.open("wb") if isinstance(target, Path) else contextlib.nullcontext(target)
    with opened as file:
        for chunk in chunks:
            file.write(compressor.compress(chunk))
        file.write(compressor.flush())


def compress(content: bytes, level: int = 1) -> bytes:
    """A zstd frame with a checksum."""
    parameters = zstd.CompressionParameter
    options: dict[int, int] = {parameters.compression_level: level, parameters.checksum_flag: 1}
    return zstd.compress(content, options=options)


def decompress(frame: bytes) -> bytes:
    """What `compress` was given. Raises ValueError for a damaged frame."""
    try:
        return zstd.decompress(frame)
    except (zstd.ZstdError, MemoryError) as error:
        raise ValueError(f"not a zstd frame: {error}") from error


def decompressed(file: IO[bytes], chunk_size: int) -> Iterator[bytes]:
    """The content of a file of frames, in chunks. Raises ValueError for a damaged one, and for one
    that needs more memory than usual."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
    try:
        with zstd.ZstdFile(file, options=options) as content:
            while chunk := content.read(chunk_size):
                yield chunk
    except (zstd.ZstdError, EOFError) as error:
        raise ValueError(f"not zstd: {error}") from error


def library_version() -> str:
    """The version of libzstd, which decides the bytes."""
    return zstd.zstd_version
