"""Whether a base will do, by what its layers make together."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from provision.errors import IntegrityError, InvalidSpec
from provision.pipeline.image import inspecting
from tests.unit.test_image_layers import archive


def libc(version: str) -> bytes:
    return f"\0x\0GNU C Library (Debian GLIBC {version}-9) stable release version {version}.\nCopyright".encode()


DEBIAN = ("usr/lib/x86_64-linux-gnu/libc.so.6", libc("2.36"))
SHELL = ("./usr/bin/sh", b"dash")


def check(folder: Path, *layers: bytes, glibc: str = "2.28") -> None:
    paths = []
    for index, layer in enumerate(layers):
        paths.append(folder / str(index))
        paths[-1].write_bytes(layer)
    inspecting.check("lab:1", paths, glibc)


def with_link(name: str, target: str, *members: tuple[str, bytes]) -> bytes:
    made = io.BytesIO(archive(*members))
    with tarfile.open(fileobj=made, mode="a") as tar:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        tar.addfile(link)
    return made.getvalue()


@pytest.mark.parametrize(
    "layers",
    [
        [archive(SHELL, DEBIAN)],
        [archive(DEBIAN), archive(SHELL)],
        [with_link("bin/sh", "dash", DEBIAN)],
        [with_link("lib/x86_64-linux-gnu/libc.so.6", "libc-2.31.so", ("lib/x86_64-linux-gnu/libc-2.31.so", libc("2.31")), SHELL)],
        [archive(("lib64/libc.so.6", libc("2.28")), ("bin/sh", b"bash"))],
        [archive(SHELL, DEBIAN), archive(("usr/bin/.wh.bash", b""))],
        [archive(SHELL, DEBIAN), archive(("usr/bin/.wh.sh", b"")), archive(SHELL)],
    ],
)
def test_bases_that_will_do(tmp_path: Path, layers: list[bytes]) -> None:
    check(tmp_path, *layers)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([archive(SHELL, ("lib/ld-musl-x86_64.so.1", b"musl"))], "has no glibc"),
        ([archive(SHELL, ("usr/lib64/libc.so.6", libc("2.17")))], "has glibc 2.17, but the environment was locked for 2.28"),
        ([archive(SHELL, ("usr/lib64/libc.so.6", libc("2.9")))], "has glibc 2.9, but"),
        ([archive(DEBIAN)], "has no /bin/sh"),
        ([archive(SHELL, DEBIAN), archive(("usr/bin/.wh.sh", b""))], "has no /bin/sh"),
        ([archive(SHELL, DEBIAN), archive(("usr/.wh.bin", b""))], "has no /bin/sh"),
        ([archive(SHELL, DEBIAN), archive(("usr/lib/.wh..wh..opq", b""))], "has no glibc"),
        ([archive(SHELL, DEBIAN), archive((DEBIAN[0], libc("2.24")))], "has glibc 2.24"),
    ],
)
def test_bases_that_will_not(tmp_path: Path, layers: list[bytes], words: str) -> None:
    with pytest.raises(InvalidSpec, match=f"The base lab:1 {words}"):
        check(tmp_path, *layers)


def test_a_layer_that_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="no archive"):
        check(tmp_path, b"x" * 5000)


def test_this_machines_own_glibc_is_read(tmp_path: Path) -> None:
    own = next((path for path in map(Path, ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6")) if path.exists()), None)
    if own is None:
        pytest.skip("no glibc where it usually lies")
    whole = archive(SHELL, ("lib64/libc.so.6", own.read_bytes()))
    check(tmp_path, whole)
    with pytest.raises(InvalidSpec, match="has glibc 2"):
        check(tmp_path, whole, glibc="2.999")
