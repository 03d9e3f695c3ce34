"""Packages that would write outside of their environment, and packages that were damaged in the cache: as rattler links them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from provision.adapters import conda
from provision.core.errors import IntegrityError, ProvisionError
from provision.core.platforms import PLATFORM
from provision.core.types import LockedPackage
from provision.image.cache_key import Recipe
from tests.unit.image.test_image_build import BASE, LOCK, RESOLUTION, Quiet

RECIPE = Recipe(resolution=RESOLUTION, lock=LOCK, base=BASE, runtime={}, epoch=0)
FILE, LINK, HARD, DEVICE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE
Member = tuple[str, bytes, bytes]  # name, kind, content or target
SOUND: Member = ("bin/sound", FILE, b"sound")


def package(
    folder: Path, members: list[Member], documents: dict[str, Any] | None = None
) -> LockedPackage:
    """A package of these members; unless documents say otherwise, it lists them all. It is called `toy`."""
    about = {
        "name": "toy",
        "version": "1.0",
        "build": "h_0",
        "build_number": 0,
        "subdir": PLATFORM,
        "depends": [],
    }
    rows = [_row(member) for member in members]
    texts: dict[str, Any] = {
        "info/index.json": about,
        "info/paths.json": {"paths": rows, "paths_version": 1},
        **(documents or {}),
    }
    archive_path = folder / "channel" / PLATFORM / "toy-1.0-h_0.tar.bz2"
    archive_path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive_path, "w:bz2") as archive:
        for name, kind, content in [
            *((name, FILE, _text(text)) for name, text in texts.items() if text is not None),
            *members,
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.devmajor, member.devminor = kind, 0o644, 1, 3
            member.size, member.linkname = (
                (len(content), "") if kind == FILE else (0, content.decode())
            )
            archive.addfile(member, io.BytesIO(content))
    digest = hashlib.sha256(archive_path.read_bytes()).hexdigest()
    return LockedPackage(
        manager="conda",
        name="toy",
        version="1.0",
        url=archive_path.as_uri(),
        sha256=digest,
        build="h_0",
    )


def _row(member: Member) -> dict[str, Any]:
    name, kind, content = member
    if kind != FILE:
        return {"_path": name, "path_type": "softlink" if kind == LINK else "hardlink"}
    return {
        "_path": name,
        "path_type": "hardlink",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_in_bytes": len(content),
    }


def _text(document: Any) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def named(name: str, folder: Path, members: list[Member]) -> LockedPackage:
    """A package of another name."""
    about = {
        "name": name,
        "version": "1.0",
        "build": "h_0",
        "build_number": 0,
        "subdir": PLATFORM,
        "depends": [],
    }
    toy = package(folder / name, members, {"info/index.json": about})
    archive_path = Path(url2pathname(urlsplit(toy.url).path))
    archive_path = archive_path.rename(archive_path.with_name(f"{name}-1.0-h_0.tar.bz2"))
    return replace(toy, name=name, url=archive_path.as_uri())


def link(folder: Path, toy: LockedPackage, name: str = "env") -> Path:
    target = folder / "envs" / name
    conda.install_packages([toy], target, final=target, cache=folder / "cache", progress=Quiet())
    return target


def listed(path: str) -> dict[str, Any]:
    return {
        "info/paths.json": {"paths": [{"_path": path, "path_type": "hardlink"}], "paths_version": 1}
    }


def all_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("members", "documents", "message"),
    [
        ([("OUTSIDE/absolute", FILE, b"x")], None, "lists .*outside/absolute, which is outside"),
        ([("../../outside/up", FILE, b"x")], None, "lists ../../outside/up, which is outside"),
        ([SOUND], listed("../neighbor/bin/x"), "lists ../neighbor/bin/x, which is outside"),
        ([SOUND], listed("bin/../../x"), "lists bin/../../x, which is outside"),
        (
            [SOUND],
            {"info/paths.json": None, "info/files": b"../../outside/x\n"},
            "lists ../../outside/x, which is outside",
        ),
        (
            [SOUND, ("lib", LINK, b"OUTSIDE")],
            None,
            "has lib, a link to the folder .*outside outside of the environment",
        ),
        (
            [SOUND, ("lib", LINK, b"../../outside")],
            None,
            "has lib, a link to the folder ../../outside outside of the environment",
        ),
        (
            [SOUND, ("lib", LINK, b"OUTSIDE")],
            listed("lib/there"),
            "lists lib/there, which is behind a link",
        ),
        (
            [SOUND],
            {"info/link.json": {"noarch": {"type": "python", "entry_points": ["../../x = m:f"]}}},
            "has a command called ../../x",
        ),
        ([SOUND], {"info/paths.json": b'{"paths": [1]}'}, "has documents that cannot be read"),
    ],
)
def test_escaping_package_is_named_and_writes_nothing(
    tmp_path: Path, members: list[Member], documents: dict[str, Any] | None, message: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("mine")
    named = [
        (
            name.replace("OUTSIDE", str(outside)),
            kind,
            content.replace(b"OUTSIDE", os.fsencode(outside)),
        )
        for name, kind, content in members
    ]
    toy = package(tmp_path, named, documents)
    with pytest.raises(IntegrityError, match=f"The conda package toy-1.0-h_0.tar.bz2 {message}"):
        link(tmp_path, toy)
    assert all_below(outside) == {"there"}
    assert (outside / "there").read_text() == "mine"
    assert all_below(tmp_path / "envs") <= {
        "env",
        "env/conda-meta",
        "env/CACHEDIR.TAG",
        "env/conda-meta/history",
    }
    assert not (tmp_path / "neighbor").exists()


@pytest.mark.parametrize(
    "member",
    [
        ("lib/through", FILE, b"x"),  # below a link to outside
        ("bin/hard", HARD, b"../../../../../../../../../../etc/hostname"),
        ("bin/hard", HARD, b"/etc/hostname"),
    ],
)
def test_escaping_members_are_not_unpacked(tmp_path: Path, member: Member) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    toy = package(tmp_path, [SOUND, ("lib", LINK, os.fsencode(outside)), member])
    with pytest.raises(ProvisionError, match="failed to unpack"):
        link(tmp_path, toy)
    assert all_below(outside) == set()


@pytest.mark.parametrize(
    "member", [("bin/device", DEVICE, b""), ("bin/link", LINK, b"/etc/passwd")]
)
def test_devices_are_refused_and_links_stay_links(tmp_path: Path, member: Member) -> None:
    path = link(tmp_path, package(tmp_path, [SOUND, member])) / member[0]
    assert (
        stat.S_ISREG(path.lstat().st_mode)
        if member[1] == DEVICE
        else str(path.readlink()) == "/etc/passwd"
    )


def test_damaged_cached_package_is_fetched_again(tmp_path: Path) -> None:
    toy = package(tmp_path, [SOUND])
    first = link(tmp_path, toy, "first")
    cached = tmp_path / "cache" / "toy-1.0-h_0" / "bin" / "sound"
    assert cached.stat().st_ino == (first / "bin" / "sound").stat().st_ino
    with cached.open("r+b") as file:
        file.write(b"S")
    assert (link(tmp_path, toy, "second") / "bin" / "sound").read_bytes() == b"sound"
    assert cached.read_bytes() == b"sound"
