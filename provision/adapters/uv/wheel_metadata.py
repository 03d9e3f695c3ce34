"""A wheel's METADATA, without downloading the wheel: from the file that an index may serve next to
it (PEP 658), else from the wheel's own archive, of which a few ranges are enough."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from provision.adapters.http import TEXT_LIMIT, HttpClient
from provision.core.dataclass import frozen
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


@frozen
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
    content = b""
    if not plain_url.startswith("file:"):
        with suppress(Unreachable):  # an index need not serve it
            content = client.content(f"{plain_url}.metadata")
    if not content:
        _, [content] = fetch_members(client, plain_url, _metadata_member)
    return _parse(content, plain_url)


def fetch_members(
    client: HttpClient, url: str, choose: Callable[[list[str]], Sequence[str]]
) -> tuple[list[str], list[bytes]]:
    """The names of the files in the wheel at a URL, and the contents of those that are chosen, by
    ranged reads. Raises Unreachable."""
    if url.startswith("file:"):
        return _read_members(path_from_url(url), url, choose)
    archive = io.BufferedReader(_RemoteFile(client, url), RANGE_BYTES)
    return _read_members(archive, url, choose)


def _read_members(
    archive: Path | IO[bytes], url: str, choose: Callable[[list[str]], Sequence[str]]
) -> tuple[list[str], list[bytes]]:
    try:
        with zipfile.ZipFile(archive) as wheel:
            names = wheel.namelist()
            return names, [wheel.open(name).read(TEXT_LIMIT) for name in choose(names)]
    except UNREADABLE as error:
        raise Unreachable(f"{url} has no readable metadata: {type(error).__name__}.") from error


def _metadata_member(names: list[str]) -> Sequence[str]:
    [member] = [
        name for name in names if name.endswith(".dist-info/METADATA") and name.count("/") == 1
    ]
    return [member]


def _parse(content: bytes, url: str) -> WheelMetadata:
    """Raises Unreachable if the server sent something else instead (a login page)."""
    from packaging.metadata import parse_email

    fields, _ = parse_email(content)
    if "name" not in fields or "version" not in fields:
        raise Unreachable(
            f"The metadata of {url} could not be read: the server sends something else instead."
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
