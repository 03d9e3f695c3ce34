"""Tar headers: readable by every tar, and always the same bytes."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest

from provision.core import tar


def read(archive: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        return members.getmembers()


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "n" * 100,
        "n" * 101,
        "p" * 155 + "/" + "n" * 100,
        "p" * 156 + "/" + "n" * 100,
        "deep/" * 60 + "name",
        "share/grüße.txt",
        "a name with spaces",
    ],
)
def test_names_are_read_back(path: str) -> None:
    (member,) = read(tar.header(path, kind="file", mode=0o644, mtime=7, size=0) + tar.END)
    assert (member.name, member.mode, member.mtime, member.uid, member.gid) == (
        path,
        0o644,
        7,
        0,
        0,
    )
    assert (member.uname, member.gname) == ("", "")


@pytest.mark.parametrize("target", ["x", "../" * 40 + "x", "zü"])
def test_link_targets_are_read_back(target: str) -> None:
    (member,) = read(tar.header("link", kind="link", mode=0o777, mtime=0, target=target) + tar.END)
    assert member.issym()
    assert member.linkname == target


def test_a_name_that_is_not_utf_8_is_read_back() -> None:
    path = b"caf\xe9".decode("utf-8", "surrogateescape")
    (member,) = read(tar.header(path, kind="file", mode=0o644, mtime=0) + tar.END)
    assert member.name == path


def test_a_size_beyond_octal_is_read_back() -> None:
    with tarfile.open(
        fileobj=io.BytesIO(tar.header("big", kind="file", mode=0o644, mtime=0, size=9 << 30)),
        mode="r|",
    ) as members:
        member = members.next()
    assert member is not None
    assert member.size == 9 << 30


def test_a_folder_ends_with_a_slash_in_the_header_only() -> None:
    block = tar.header("opt/env", kind="folder", mode=0o755, mtime=0)
    assert block.startswith(b"opt/env/\0")
    assert read(block + tar.END)[0].isdir()


def test_pax_is_used_only_when_needed() -> None:
    assert len(tar.header("n" * 100, kind="file", mode=0o644, mtime=0)) == 512
    assert len(tar.header("n" * 101, kind="file", mode=0o644, mtime=0)) == 3 * 512


def test_the_bytes_of_a_header_never_change() -> None:
    """A new digest here is a new digest of every image: say so in the CHANGELOG."""
    blocks = tar.header(
        "opt/env/bin/python", kind="link", mode=0o777, mtime=315532800, target="python3.11"
    )
    blocks += tar.header("d/" * 130 + "n", kind="file", mode=0o755, mtime=315532800, size=12345)
    assert (
        hashlib.sha256(blocks).hexdigest()
        == "3205f990a161a17933c362a1322755083f9fc9901ca6ad8808789350fa7b685b"
    )
