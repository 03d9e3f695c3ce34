"""Compression with gzip on all cores: members of a fixed size one after another, so that the bytes do not
depend on the number of cores. Readers take several members as one stream (RFC 1952, 2.2)."""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from provision.core.host import usable_cpus

LEVEL = 6
MEMBER = 4 << 20


def compress_to(chunks: Iterable[bytes], target: Path, threads: int | None = None) -> None:
    count = threads or usable_cpus()
    compress = partial(gzip.compress, compresslevel=LEVEL, mtime=0)
    pending: deque[Future[bytes]] = deque()
    with target.open("wb") as file, ThreadPoolExecutor(count) as executor:
        for block in _blocks(chunks):
            pending.append(executor.submit(compress, block))
            if len(pending) > count:
                file.write(pending.popleft().result())
        for future in pending:
            file.write(future.result())


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of MEMBER bytes; the last one is shorter."""
    block = bytearray()
    for chunk in chunks:
        block += chunk
        while len(block) >= MEMBER:
            yield bytes(block[:MEMBER])
            del block[:MEMBER]
    yield bytes(block)


def library_version() -> str:
    """The version of zlib, which decides the bytes."""
    return zlib.ZLIB_RUNTIME_VERSION
