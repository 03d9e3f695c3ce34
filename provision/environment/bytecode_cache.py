"""Byte code that was compiled before, on this machine, from the same sources by the same Python.

Compiling is the longest step of a small environment and takes 30 s of processor time for a large
one; environments of one lab share most packages. An entry is what one batch of sources became
(bytecode.py): a folder with all files, by number, and an index of their paths and hashes. Its name is
the hash of all that decides about them: the Python package, the compiler, and every source with its
path and permissions. Whether Python is to check the source is one bit of the header: a tree for which
that is set, as in every prefix, shares the files by hard links, which take a tenth of the time; another
one gets files of its own.
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
from tempfile import TemporaryDirectory

from provision.adapters.http import sha256_of
from provision.core.atomic import remove_tree
from provision.core.paths import make_private_directory

FORMAT = b"4"  # of an entry
HASHED, CHECKED = 0b01, 0b10  # of the flags in the header (PEP 552)
FLAGS = slice(4, 8)
INDEX = "index.json"


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
                permissions = _permissions(f"{tree}/{source}")
                digest.update(f"\0{source}\0{sha256_of(tree / source)}{permissions}".encode())
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
                with TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as folder:
                    self._store(tree, batch, folder)
                    remove_tree(path)  # a damaged one
                    Path(folder).rename(path)

    def _byte_code(self, source: str) -> str:
        folder, name = posixpath.split(source)
        return f"{folder}/__pycache__/{name.removesuffix('.py')}.{self._tag}.pyc"

    def _store(self, tree: Path, batch: Sequence[str], folder: str) -> None:
        """A source that is not valid Python has no byte code."""
        hashes = {}
        for source in batch:
            file = self._byte_code(source)
            with suppress(FileNotFoundError):
                byte_code = (tree / file).read_bytes()
                content = _with_mode(byte_code, "checked-hash")
                hashes[file] = hashlib.sha256(content).hexdigest()
                shared = f"{tree}/{file}" if content == byte_code else ""
                _write_file(f"{folder}/{len(hashes)}", content, f"{tree}/{source}", shared)
        Path(folder, INDEX).write_text(json.dumps(hashes), encoding="utf-8")

    def _restore(
        self, path: Path, tree: Path, batch: Sequence[str], mode: str
    ) -> dict[str, str] | None:
        """The sha256 of each file that was written; None without an intact entry."""
        files = {}
        try:
            hashes: dict[str, str] = json.loads((path / INDEX).read_bytes())
            for number, (file, sha256) in enumerate(hashes.items(), 1):
                with open(f"{path}/{number}", "rb") as stream:  # noqa: PTH123
                    content = stream.read()
                if hashlib.sha256(content).hexdigest() != sha256:
                    return None
                files[file] = f"{path}/{number}", content
        except (OSError, ValueError):
            return None
        for source in batch:
            file = self._byte_code(source)
            if file in files:
                shared, content = files[file]
                byte_code = _with_mode(content, mode)
                if byte_code != content:
                    hashes[file], shared = hashlib.sha256(byte_code).hexdigest(), ""
                _write_file(f"{tree}/{file}", byte_code, f"{tree}/{source}", shared)
        return hashes


def _with_mode(byte_code: bytes, mode: str) -> bytes:
    """The same byte code with the flags of `checked-hash` or `unchecked-hash`."""
    content = bytearray(byte_code)
    flags = HASHED | CHECKED if mode == "checked-hash" else HASHED
    content[FLAGS] = flags.to_bytes(4, "little")
    return bytes(content)


def _permissions(source: str) -> int:
    """Those that Python gives the byte code of a source."""
    return (os.stat(source).st_mode | stat.S_IWUSR) & 0o666  # noqa: PTH116


def _write_file(path: str, content: bytes, source: str, shared: str) -> None:
    """A new file with this content: a link to `shared`, if that names a file and the file system can
    link it."""
    if not os.path.isdir(folder := posixpath.dirname(path)):  # noqa: PTH112
        Path(folder).mkdir()
    if shared:
        with suppress(OSError):  # another file system, or too many links
            os.link(shared, path)
            return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, _permissions(source)), "wb") as stream:
        stream.write(content)
