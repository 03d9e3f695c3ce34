"""Archives that others made, read so that no header of theirs costs more memory than it may."""

from __future__ import annotations

import gzip
import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Callable

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
HEADER_LIMIT = 1 << 20  # of the names and attributes of one member, which tarfile reads whole
_LONG = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)

# What tarfile raises for an archive that is none; RecursionError: names of names of names.
UNREADABLE = (
    tarfile.TarError,
    ValueError,
    OverflowError,
    RecursionError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
)


class Bounded(tarfile.TarInfo):
    """For `tarfile.open(tarinfo=Bounded)`: ReadError where a member's names are larger than any are."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Bounded:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _LONG and member.size > HEADER_LIMIT:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def hidden_by(path: str) -> Callable[[str], bool] | None:
    """Which paths of the layers below a member of this name hides: itself and what is in it, or all that its folder holds; None if it
    is no whiteout."""
    folder, name = posixpath.split(path)
    if not name.startswith(WHITEOUT):
        return None
    hidden = folder if name == OPAQUE else posixpath.join(folder, name[len(WHITEOUT) :])
    below = "" if path == OPAQUE else f"{hidden}/"
    return lambda known: known.startswith(below) or (name != OPAQUE and known == hidden)
