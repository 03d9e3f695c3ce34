"""Compression of streams with zstd: the same bytes on any number of CPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from provision.core.host import usable_cpus

LEVEL = 3
MAX_THREADS = 16  # each holds some megabytes


def compress_to(chunks: Iterable[bytes], target: Path, threads: int | None = None) -> None:
    """Write a stream as one zstd frame with a checksum.

    libzstd cuts a stream into jobs whose sizes do not depend on the number of threads, as long as
    there is at least one (not 0, its other way of working).
    """
    import zstandard

    count = threads or min(usable_cpus(), MAX_THREADS)
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=count, write_checksum=True)
    with target.open("wb") as file, compressor.stream_writer(file, closefd=False) as writer:
        for chunk in chunks:
            writer.write(chunk)


def library_version() -> str:
    """The version of libzstd, which decides the bytes."""
    import zstandard

    return ".".join(map(str, zstandard.ZSTD_VERSION))
