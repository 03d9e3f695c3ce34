"""A wheel's METADATA, without downloading the wheel: from the file that an index may serve next to
it (PEP 658), else from the wheel's own archive, of which a few ranges are enough."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from provision.adapters.http import TEXT_LIMIT, HttpClient
from provision.core.errors import Unreachable
from provision.core.mirrors import path_from_url

# Bytes of an archive per request: enough for the end of most, where the list of their files is.
RANGE_BYTES = 1 << 16
# What zipfile raises for a file that is not an archive, or that it cannot read.
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
    """What a wheel's own METADATA says."""

    name: str
    version: str
    requires_python: str
    requires: tuple[str, ...]


def fetch_metadata(client: HttpClient, url: str) -> WheelMetadata:
    """The metadata of the wheel at a URL. Raises Unreachable, with the reason after the last `: `
    of its message."""
    plain_url = url.partition("#")[0]
    if plain_url.startswith("file:"):
        return _parse(_read_archive(path_from_url(plain_url), plain_url), plain_url)
    try:
        content = client.content(f"{plain_url}.metadata")
    except Unreachable:  # an index need not serve it
        archive = io.BufferedReader(_RemoteFile(client, plain_url), RANGE_BYTES)
        content = _read_archive(archive, plain_url)
    return _parse(content, plain_url)


def _read_archive(archive: Path | IO[bytes], url: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as wheel:
            members = [
                name
                for name in wheel.namelist()
                if name.endswith(".dist-info/METADATA") and name.count("/") == 1
            ]
            (member,) = members
            with wheel.open(member) as file:
                return file.read(TEXT_LIMIT)
    except UNREADABLE as error:
        raise Unreachable(f"{url} holds no readable metadata: {type(error).__name__}.") from error


def _parse(content: bytes, url: str) -> WheelMetadata:
    """Raises Unreachable if the server sent something else instead (a login page)."""
    from packaging.metadata import parse_email

    fields, _ = parse_email(content)
    if "name" not in fields or "version" not in fields:
        raise Unreachable(
            f"The metadata of {url} could not be read: the server sends something "
            "else in its place."
        )
    return WheelMetadata(
        name=fields["name"],
        version=fields["version"],
        requires_python=fields.get("requires_python", ""),
        requires=tuple(fields.get("requires_dist", ())),
    )


class _RemoteFile(io.RawIOBase):
    """A server's file, of which only the ranges that are read are downloaded."""

    def __init__(self, client: HttpClient, url: str) -> None:
        self._client, self._url, self._position = client, url, 0
        _, self._size = client.byte_range(url, 0, 1)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, origins[whence] + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if self._position >= end:
            return 0
        content, _ = self._client.byte_range(self._url, self._position, end)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
