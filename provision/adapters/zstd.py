"""Compression with zstd: streams, which become the same bytes on any number of CPUs, and bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from provision.core.host import usable_cpus

LEVEL = 3
MAX_THREADS = 16  # each holds some megabytes


def compress_to(
    chunks: Iterable[bytes], target: Path | IO[bytes], threads: int | None = None
) -> None:
    """Write a stream, to a path or an open file, as one zstd frame with a checksum.

    libzstd cuts a stream into jobs whose sizes do not depend on the number of threads, as long as
    there is at least one (not 0, its other way of working).
    """
    import zstandard

    count = threads or min(usable_cpus(), MAX_THREADS)
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=count, write_checksum=True)
    opened = target.open("wb") if isinstance(target, Path) else contextlib.nullcontext(target)
    with opened as file, compressor.stream_writer(file, closefd=False) as writer:
        for chunk in chunks:
            writer.write(chunk)


def compress(content: bytes, level: int = 1) -> bytes:
    """A zstd frame with a checksum."""
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(content)


def decompress(frame: bytes) -> bytes:
    """What `compress` was given. Raises ValueError for a damaged frame."""
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(frame)
    except (zstandard.ZstdError, MemoryError) as error:  # the frame says how long its content is
        raise ValueError(f"not a zstd frame: {error}") from error


def library_version() -> str:
    """The version of libzstd, which decides the bytes."""
    import zstandard

    return ".".join(map(str, zstandard.ZSTD_VERSION))
