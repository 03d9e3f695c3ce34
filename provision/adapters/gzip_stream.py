"""Compression with gzip on all cores: members of a fixed size one after another, so that the bytes do not
depend on the number of cores. Readers take several members as one stream (RFC 1952, 2.2)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from provision.core.parallel import map_in_order

LEVEL = 6
MEMBER = 4 << 20


def compress_to(chunks: Iterable[bytes], target: Path) -> None:
    compress = partial(gzip.compress, compresslevel=LEVEL, mtime=0)
    with target.open("wb") as file:
        file.writelines(map_in_order(compress, _blocks(chunks)))


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
