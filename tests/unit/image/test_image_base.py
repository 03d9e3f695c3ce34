"""Which bases are suitable, by the contents of their layers."""

from __future__ import annotations

import contextlib
import io
import random
import tarfile
from pathlib import Path

import pytest

from provision.core.errors import IntegrityError, InvalidSpec
from provision.image import base, contents, layers, sbom
from tests.unit.image.test_image_layers import archive, digest


def libc(version: str) -> bytes:
    return f"\0x\0GNU C Library (Debian GLIBC {version}-9) stable release version {version}.\nCopyright".encode()


DEBIAN = ("usr/lib/x86_64-linux-gnu/libc.so.6", libc("2.36"))
SHELL = ("./usr/bin/sh", b"dash")


def check(folder: Path, *layers: bytes, glibc: str = "2.28") -> None:
    paths = []
    for index, layer in enumerate(layers):
        paths.append(folder / str(index))
        paths[-1].write_bytes(layer)
    base.check_base("lab:1", paths, glibc)


def with_link(name: str, target: str, *members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO(archive(*members))
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        tar.addfile(link)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "layers",
    [
        [archive(SHELL, DEBIAN)],
        [archive(DEBIAN), archive(SHELL)],
        [with_link("bin/sh", "dash", DEBIAN)],
        [
            with_link(
                "lib/x86_64-linux-gnu/libc.so.6",
                "libc-2.31.so",
                ("lib/x86_64-linux-gnu/libc-2.31.so", libc("2.31")),
                SHELL,
            )
        ],
        [archive(("lib64/libc.so.6", libc("2.28")), ("bin/sh", b"bash"))],
        [archive(SHELL, DEBIAN), archive(("usr/bin/.wh.bash", b""))],
        [archive(SHELL, DEBIAN), archive(("usr/bin/.wh.sh", b"")), archive(SHELL)],
    ],
)
def test_suitable_bases_are_accepted(tmp_path: Path, layers: list[bytes]) -> None:
    check(tmp_path, *layers)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([archive(SHELL, ("lib/ld-musl-x86_64.so.1", b"musl"))], "has no glibc"),
        (
            [archive(SHELL, ("usr/lib64/libc.so.6", libc("2.17")))],
            "has glibc 2.17, but the environment was locked for 2.28",
        ),
        ([archive(SHELL, ("usr/lib64/libc.so.6", libc("2.9")))], "has glibc 2.9, but"),
        ([archive(DEBIAN)], "has no /bin/sh"),
        ([archive(SHELL, DEBIAN), archive(("usr/bin/.wh.sh", b""))], "has no /bin/sh"),
        ([archive(SHELL, DEBIAN), archive(("usr/.wh.bin", b""))], "has no /bin/sh"),
        ([archive(SHELL, DEBIAN), archive(("usr/lib/.wh..wh..opq", b""))], "has no glibc"),
        ([archive(SHELL, DEBIAN), archive((".wh..wh..opq", b""))], "has no glibc"),
        ([archive(SHELL, DEBIAN), archive((DEBIAN[0], libc("2.24")))], "has glibc 2.24"),
    ],
)
def test_unsuitable_bases_are_refused(tmp_path: Path, layers: list[bytes], message: str) -> None:
    with pytest.raises(InvalidSpec, match=f"The base lab:1 {message}"):
        check(tmp_path, *layers)


def hostile() -> bytes:
    """A layer with members that would harm whoever unpacked it as they say."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target in (
            ("/etc/cron.d/absolute", tarfile.REGTYPE, ""),
            ("../../../up", tarfile.REGTYPE, ""),
            ("opt", tarfile.SYMTYPE, "/etc"),
            ("opt/through", tarfile.REGTYPE, ""),
            ("bin", tarfile.SYMTYPE, "../../../../usr/bin"),
            ("dev/null", tarfile.CHRTYPE, ""),
            ("dev/sda", tarfile.BLKTYPE, ""),
            ("run/pipe", tarfile.FIFOTYPE, ""),
            ("hard", tarfile.LNKTYPE, "/etc/shadow"),
            ("lib64/libc.so.6", tarfile.LNKTYPE, "../../../etc/shadow"),
            ("lib/libc.so.6", tarfile.SYMTYPE, "/proc/self/mem"),
            ("lib/x86_64-linux-gnu/libc.so.6", tarfile.FIFOTYPE, ""),
            ("opt/env/conda-meta/x.json", tarfile.LNKTYPE, "nowhere"),
            ("../.wh..wh..opq", tarfile.REGTYPE, ""),
            ("usr/.wh.", tarfile.REGTYPE, ""),
            ("x" * 5000, tarfile.REGTYPE, ""),
            ("bad\udcff\nname", tarfile.REGTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.devmajor = kind, target, 1
            tar.addfile(member)
    return buffer.getvalue()


def test_hostile_base_is_never_unpacked(tmp_path: Path) -> None:
    """Nothing of it is unpacked: its layers are passed on as they are, and whatever runs the image unpacks them within its own root."""
    bad, good = hostile(), archive(SHELL, DEBIAN)
    (tmp_path / "blobs").mkdir()
    digests = [digest(bad), digest(good)]
    blobs = [tmp_path / "blobs" / it[7:] for it in digests]
    members = [archive(("x", bad), ("../../y", good))]
    layers.write_base(members, digests, tmp_path / "blobs", lambda _: None)
    assert [blob.read_bytes() for blob in blobs] == [bad, good]
    assert [path.name for path in tmp_path.iterdir()] == ["blobs"]
    base.check_base("lab:1", blobs, "2.28")
    assert contents.read_files(blobs, sbom.RECORDS).files == {}
    with pytest.raises(InvalidSpec, match="has no glibc"):
        base.check_base("lab:1", blobs[:1], "2.28")


def test_libc_of_another_name_or_unlimited_size_is_not_read(tmp_path: Path) -> None:
    second = tarfile.TarInfo("lib64/libc.so.6")
    second.type, second.linkname = tarfile.LNKTYPE, "lib64/libc-2.31.so"
    buffer = io.BytesIO(archive(("lib64/libc-2.31.so", libc("2.31")), SHELL))
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        tar.addfile(second)
    check(tmp_path, buffer.getvalue(), glibc="2.31")
    huge = tarfile.TarInfo("lib64/libc.so.6")
    huge.size = 1 << 40
    with (tmp_path / "0").open("wb") as file:
        file.write(huge.tobuf())
        file.truncate((1 << 40) + 2048)
    with pytest.raises(IntegrityError, match="more than 64 MiB"):
        base.check_base("lab:1", [tmp_path / "0"], "2.28")


@pytest.mark.parametrize("seed", range(40))
def test_garbled_layer_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    """Bytes changed at random, mostly within headers."""
    chance = random.Random(seed)
    garbled = bytearray(hostile() + archive(SHELL, DEBIAN))
    for _ in range(chance.randint(1, 30)):
        garbled[chance.randrange(len(garbled)) & ~0x180] = chance.randrange(256)
    (tmp_path / "layer").write_bytes(garbled)
    with contextlib.suppress(IntegrityError, InvalidSpec):
        base.check_base("lab:1", [tmp_path / "layer"], "2.28")
    with contextlib.suppress(IntegrityError):
        contents.read_files([tmp_path / "layer"], sbom.RECORDS)


def test_layer_that_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="not a tar archive"):
        check(tmp_path, b"x" * 5000)


def test_glibc_of_this_machine_is_read(tmp_path: Path) -> None:
    own = next(
        (
            path
            for path in map(Path, ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"))
            if path.exists()
        ),
        None,
    )
    if own is None:
        pytest.skip("no glibc where it usually lies")
    whole = archive(SHELL, ("lib64/libc.so.6", own.read_bytes()))
    check(tmp_path, whole)
    with pytest.raises(InvalidSpec, match="has glibc 2"):
        check(tmp_path, whole, glibc="2.999")
