"""What a wheel says of itself (its METADATA), without fetching the wheel: from the file that an index may serve beside it (PEP 658),
else out of the wheel's own archive, of which a few pieces are enough."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from provision.adapters.http import TEXT_LIMIT, HttpClient
from provision.core.errors import Unreachable
from provision.core.mirrors import path_from_url, without_login

# At once of an archive: enough for the end of most, where the list of their files is.
PIECE = 1 << 16
# What zipfile raises for an archive that is none, or is one that it cannot read.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    LookupError,
    EOFError,
    OSError,
)


@dataclass(frozen=True, kw_only=True)
class WheelMetadata:
    """What a wheel is and needs, in its own words."""

    name: str
    version: str
    requires_python: str
    requires: tuple[str, ...]


def fetch_metadata(web: HttpClient, url: str) -> WheelMetadata:
    """Of the wheel at this address. Raises Unreachable; why stands after the last `: ` of its message."""
    plain = url.partition("#")[0]
    if plain.startswith("file:"):
        return _parsed(_of_archive(path_from_url(plain), plain), plain)
    try:
        beside = web.content(f"{plain}.metadata")
    except Unreachable:  # an index need not have it
        return _parsed(_of_archive(io.BufferedReader(_Remote(web, plain), PIECE), plain), plain)
    return _parsed(beside, plain)


def _of_archive(archive: Path | IO[bytes], url: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as wheel:
            (info,) = (
                name
                for name in wheel.namelist()
                if name.endswith(".dist-info/METADATA") and name.count("/") == 1
            )
            with wheel.open(info) as file:
                return file.read(TEXT_LIMIT)
    except UNREADABLE as error:
        raise Unreachable(
            f"{without_login(url)} holds no metadata that can be read: {type(error).__name__}."
        ) from error


def _parsed(content: bytes, url: str) -> WheelMetadata:
    """What answers in a wheel's place (a login page) is none of its words."""
    from packaging.metadata import parse_email

    said, _ = parse_email(content)
    if "name" not in said or "version" not in said:
        raise Unreachable(
            f"{without_login(url)} cannot be looked into: what is served as its metadata is something else."
        )
    return WheelMetadata(
        name=said["name"],
        version=said["version"],
        requires_python=said.get("requires_python", ""),
        requires=tuple(said.get("requires_dist", ())),
    )


class _Remote(io.RawIOBase):
    """A server's file, of which only what is read is fetched."""

    def __init__(self, web: HttpClient, url: str) -> None:
        self._web, self._url, self._at = web, url, 0
        _, self._size = web.byte_range(url, 0, 1)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(
            0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        )
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if self._at >= end:
            return 0
        piece, _ = self._web.byte_range(self._url, self._at, end)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
