"""Byte code that was compiled before, on this machine, from the same sources by the same Python.

Compiling is the longest step of a small environment and takes 30 s of processor time for a large
one; environments of one lab share most packages. An entry is what one batch of sources became
(bytecode.py): an index of sizes and all files, compressed. Its name is the hash of all that decides
about the bytes: the Python package, the compiler, and every source with its path. Whether Python is
to check the source is one bit of the header, which is set as the tree needs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from provision.adapters import zstd
from provision.adapters.http import sha256_of
from provision.core.atomic import atomic_stream
from provision.core.paths import make_private_directory

FORMAT = b"3"  # of an entry
HASHED, CHECKED = 0b01, 0b10  # of the flags in the header (PEP 552)
FLAGS = slice(4, 8)
SEPARATOR = b"\n"  # after the index, which is one line


class ByteCodeCache:
    """folder: where entries lie; it need not exist. python: what tells Pythons apart, the sha256
    of the package. compiler: the file that compiles. tag: the Python's, as cpython-311."""

    def __init__(self, folder: Path, *, python: str, tag: str, compiler: Path) -> None:
        self._folder = folder
        self._tag = tag
        self._base = "\0".join((python, tag, sha256_of(compiler))).encode() + FORMAT

    def restore(
        self, tree: Path, batches: Iterable[Sequence[str]], mode: str
    ) -> tuple[dict[Path, Sequence[str]], dict[str, str]]:
        """Write the byte code of the batches that have an entry; returns the others, each with the
        path that its entry will have, and the sha256 of each file that was written."""
        missing = {}
        written: dict[str, str] = {}
        for batch in batches:
            digest = hashlib.sha256(self._base)
            for source in batch:
                digest.update(f"\0{source}\0{sha256_of(tree / source)}".encode())
            key = digest.hexdigest()
            path = self._folder / key[:2] / key
            restored = self._restore(path, tree, batch, mode)
            if restored is None:
                missing[path] = batch
            else:
                written |= restored
        return missing, written

    def add(self, tree: Path, missing: Mapping[Path, Sequence[str]]) -> None:
        """Store what the batches became that `restore` returned. An OSError, as on a full disk,
        only ends it: the tree is complete without the cache."""
        with suppress(OSError):
            for path, batch in missing.items():
                make_private_directory(path.parent)
                with atomic_stream(path) as file:
                    file.write(self._pack(tree, batch))

    def _byte_code(self, source: str) -> str:
        folder, name = posixpath.split(source)
        return f"{folder}/__pycache__/{name.removesuffix('.py')}.{self._tag}.pyc"

    def _pack(self, tree: Path, batch: Sequence[str]) -> bytes:
        """A source that is not valid Python has no byte code."""
        contents = {}
        for source in batch:
            file = self._byte_code(source)
            with suppress(FileNotFoundError):
                contents[file] = _with_mode((tree / file).read_bytes(), "checked-hash")
        sizes = {file: len(content) for file, content in contents.items()}
        index = json.dumps(sizes).encode()
        return zstd.compress(b"".join((index, SEPARATOR, *contents.values())))

    def _restore(
        self, path: Path, tree: Path, batch: Sequence[str], mode: str
    ) -> dict[str, str] | None:
        """The sha256 of each file that was written; None without an intact entry."""
        try:
            files = _unpack(path.read_bytes())
        except (OSError, ValueError):
            return None
        written = {}
        for source in batch:
            file = self._byte_code(source)
            if file in files:
                byte_code = _with_mode(files[file], mode)
                _write(f"{tree}/{file}", byte_code, f"{tree}/{source}")
                written[file] = hashlib.sha256(byte_code).hexdigest()
        return written


def _unpack(packed: bytes) -> dict[str, bytes]:
    """The files of an entry. Raises ValueError if it is damaged, by its checksum."""
    index, _, content = zstd.decompress(packed).partition(SEPARATOR)
    files, start = {}, 0
    for file, size in json.loads(index).items():
        files[file] = content[start : start + size]
        start += size
    return files


def _with_mode(byte_code: bytes, mode: str) -> bytes:
    """The same byte code with the flags of `checked-hash` or `unchecked-hash`."""
    content = bytearray(byte_code)
    flags = HASHED | CHECKED if mode == "checked-hash" else HASHED
    content[FLAGS] = flags.to_bytes(4, "little")
    return bytes(content)


def _write(path: str, content: bytes, source: str) -> None:
    """A new file with the permissions that Python gives byte code: its source's."""
    permissions = (os.stat(source).st_mode | stat.S_IWUSR) & 0o666  # noqa: PTH116
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        file = os.open(path, flags, permissions)
    except FileNotFoundError:
        Path(path).parent.mkdir()
        file = os.open(path, flags, permissions)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
