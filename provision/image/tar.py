"""Tar headers whose bytes depend on nothing but their arguments.

tarfile promises archives that can be read, not the same bytes from every Python release; a layer's digest must be the same
from 3.10 to 3.13, so the few fields that a layer needs are written here. Format: POSIX ustar, with one pax record per value
that ustar cannot hold.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["file", "link", "folder"]

BLOCK = 512
END = bytes(2 * BLOCK)

_TYPE = {"file": b"0", "link": b"2", "folder": b"5"}
_PAX = b"x"
_SIZE_LIMIT = 8 << 30  # eleven octal digits
_NAME_LIMIT, _PREFIX_LIMIT, _LINK_LIMIT = 100, 155, 100


def header(
    path: str, *, kind: Kind, mode: int, mtime: int, size: int = 0, target: str = ""
) -> bytes:
    """The header of one member, with a pax header before it if a value does not fit."""
    name = _encoded(path + "/" if kind == "folder" else path)
    link = _encoded(target)
    parts = _split(name)
    records = b""
    if parts is None or not name.isascii():
        records += _record(b"path", name)
        parts = (b"", name[:_NAME_LIMIT])
    if len(link) > _LINK_LIMIT or not link.isascii():
        records += _record(b"linkpath", link)
        link = link[:_LINK_LIMIT]
    if size >= _SIZE_LIMIT:
        records += _record(b"size", str(size).encode())
    own = _block(parts, _TYPE[kind], mode, mtime, size if size < _SIZE_LIMIT else 0, link)
    if not records:
        return own
    pax = _block((b"", b"PaxHeader"), _PAX, 0o644, mtime, len(records), b"")
    return pax + records + padding(len(records)) + own


def padding(size: int) -> bytes:
    """What follows `size` bytes of content up to the next block."""
    return bytes(-size % BLOCK)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """A name as ustar's prefix and name, or None when it fits neither whole nor at any slash."""
    if len(name) <= _NAME_LIMIT:
        return b"", name
    cut = name.rfind(b"/", 0, min(_PREFIX_LIMIT + 1, len(name) - 1))
    if cut <= 0 or len(name) - cut - 1 > _NAME_LIMIT:
        return None
    return name[:cut], name[cut + 1 :]


def _record(key: bytes, value: bytes) -> bytes:
    """`length key=value`, where length counts its own digits."""
    length = rest = len(key) + len(value) + 3
    while len(str(length)) + rest != length:
        length = len(str(length)) + rest
    return b"%d %s=%s\n" % (length, key, value)


def _block(
    parts: tuple[bytes, bytes], kind: bytes, mode: int, mtime: int, size: int, link: bytes
) -> bytes:
    prefix, name = parts
    before = b"".join(
        (
            name.ljust(100, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,  # uid
            b"%07o\0" % 0,  # gid
            b"%011o\0" % size,
            b"%011o\0" % mtime,
        )
    )
    after = b"".join(
        (
            kind,
            link.ljust(100, b"\0"),
            b"ustar\x0000",
            bytes(80),
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
    checksum = sum(before) + sum(after) + 8 * ord(" ")
    return before + b"%06o\0 " % checksum + after
