"""A disk without room for packages is named before anything is downloaded. Real disks: tmpfs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest

from provision.core.errors import NoSpace
from provision.core.mirrors import NO_MIRRORS
from provision.core.types import Lock, LockedPackage
from provision.environment import disk_space
from tests.unit.core.test_file_locks import Recorder
from tests.unit.environment.test_prefix import lock

pytestmark = [
    pytest.mark.mounts,
]
WHEEL_BYTES = 50_000


@dataclass
class Index:
    url: str
    served: int = 0  # bytes of packages


@pytest.fixture
def index() -> Iterator[Index]:
    """A server that has every package, each of the same size."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Range"] == "bytes=0-0"
            self.send_response(206)
            self.send_header("Content-Range", f"bytes 0-0/{WHEEL_BYTES}")
            # Before the byte: whoever has it may look at once.
            result.served += 1
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"P")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    result = Index(f"http://127.0.0.1:{server.server_port}")
    yield result
    server.shutdown()
    server.server_close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """64 KiB: room for one wheel."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def environment(index: Index, *, wheels: int = 0, conda: int = 0) -> Lock:
    """So many packages of the index, and a Python of which nothing is known."""
    python = replace(lock().packages[0], url="file:///no-such/python-3.11.7-host_0.conda")
    packages = [python]
    for number in range(wheels):
        url = f"{index.url}/no_such_{number}-1.0-py3-none-any.whl"
        packages.append(package("pip", f"no-such-{number}", url))
    for number in range(conda):
        url = f"{index.url}/linux-64/lib{number}-1.0-0.conda"
        packages.append(package("conda", f"lib{number}", url))
    return replace(lock(), packages=tuple(packages))


def package(manager: Literal["conda", "pip"], name: str, url: str) -> LockedPackage:
    return LockedPackage(manager=manager, name=name, version="1.0", url=url, sha256="a" * 64)


def test_full_cache_is_named_before_anything_is_downloaded(
    index: Index, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(disk))
    with pytest.raises(
        NoSpace, match=rf"at least 97\.66 KiB in {disk}, where .* are free"
    ) as error:
        disk_space.check(
            environment(index, wheels=2),
            tmp_path / "lab",
            tmp_path / "conda",
            NO_MIRRORS,
            Recorder(),
        )
    assert "UV_CACHE_DIR" in error.value.advice
    assert index.served == 2  # a byte of each


def test_full_disk_of_the_environment_is_named(
    index: Index, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(NoSpace, match=rf"at least 97\.66 KiB in {disk}"):
        disk_space.check(
            environment(index, wheels=2), disk / "lab", disk / "conda", NO_MIRRORS, Recorder()
        )


def test_full_cache_of_conda_packages_is_named(
    index: Index, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    lock = environment(index, conda=2)
    with pytest.raises(NoSpace, match=rf"at least 97\.66 KiB in {disk}") as error:
        disk_space.check(lock, tmp_path / "lab", disk, NO_MIRRORS, Recorder())
    assert "PROVISION_CACHE" in error.value.advice
    assert index.served == 2  # a byte of each
    (disk / "lib0-1.0-0").mkdir()  # downloaded before
    disk_space.check(lock, tmp_path / "lab", disk, NO_MIRRORS, Recorder())


def test_caches_on_one_disk_add_up(
    index: Index, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(disk / "uv"))
    lock = environment(index, wheels=1, conda=1)
    with pytest.raises(NoSpace, match=rf"at least 97\.66 KiB in {disk}"):
        disk_space.check(lock, disk / "lab", disk / "conda", NO_MIRRORS, Recorder())


def test_wheels_that_fit_are_no_error(
    index: Index, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(disk))
    disk_space.check(
        environment(index, wheels=1), disk / "lab", disk / "conda", NO_MIRRORS, Recorder()
    )


def test_nothing_is_asked_where_there_is_room(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_space, "AMPLE", 1)
    disk_space.check(
        environment(index, wheels=2), tmp_path / "lab", tmp_path / "conda", NO_MIRRORS, Recorder()
    )
    assert index.served == 0


def test_each_disk_is_described_once(disk: Path, tmp_path: Path) -> None:
    places = {
        "the environment": disk / "lab",
        "uv's cache": tmp_path / "a",
        "conda packages": tmp_path / "b",
    }
    text = disk_space.free_space(places)
    assert text.count(" in ") == 2
    assert f"files in {disk} (the environment)" in text


def test_many_packages_need_more_room_to_be_sure_of(
    index: Index, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment of any size is asked for where a disk may be too small for it."""
    monkeypatch.setenv("UV_CACHE_DIR", str(disk / "uv"))
    monkeypatch.setattr(disk_space, "AMPLE", 1)
    monkeypatch.setattr(disk_space, "AMPLE_PER_PACKAGE", 30 << 10)
    disk_space.check(environment(index), disk / "lab", disk / "conda", NO_MIRRORS, Recorder())
    assert index.served == 0
    with pytest.raises(NoSpace, match=rf"at least 97\.66 KiB in {disk}"):
        disk_space.check(
            environment(index, wheels=2), disk / "lab", disk / "conda", NO_MIRRORS, Recorder()
        )
