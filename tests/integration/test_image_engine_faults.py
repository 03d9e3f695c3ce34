"""An engine of the test's own that fails: its disk is too small, or it is killed while it takes an image."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.adapters.docker import connect_engine
from provision.core.errors import NoSpace, Unreachable
from provision.core.types import Image, Layer
from provision.image import oci_layout
from provision.image.config import LOCK_LABEL, TITLE_LABEL
from provision.image.docker import load_image
from tests.integration.short_folders import short_folder
from tests.integration.test_image import Watching

pytestmark = [
    pytest.mark.docker,
    pytest.mark.loop,
    pytest.mark.needs("dockerd", "mkfs.ext4"),
]
DISK = 160 << 20


class Engine:
    """A dockerd whose state lies in `folder`. In a network of its own: without a bridge, it removes another dockerd's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/socket"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Any:
        """Start it, and a client once it answers."""
        places = [
            f"--data-root={self.folder / 'disk' / 'data'}",
            f"--exec-root={self.folder / 'exec'}",
            f"--pidfile={self.folder / 'pid'}",
        ]
        command = [
            "unshare",
            "--net",
            "dockerd",
            f"--host={self.host}",
            *places,
            "--bridge=none",
            "--iptables=false",
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while (client := connect_engine()[0]) is None:
            assert self._process.poll() is None and time.monotonic() < end, (
                self.folder / "log"
            ).read_text()[-2000:]
            time.sleep(0.1)
        return client

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._end_containerd()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._end_containerd()

    def _end_containerd(self) -> None:
        """dockerd's own. Its number goes too: where nobody reaps what dockerd left, the next dockerd takes it for alive."""
        number = self.folder / "exec" / "containerd" / "containerd.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(number.read_text()), signal.SIGKILL)
        number.unlink(missing_ok=True)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """On a disk of its own, and where DOCKER_HOST points meanwhile."""
    with short_folder("engine") as folder:
        with (folder / "ext4").open("wb") as file:
            file.truncate(DISK)
        subprocess.run(["mkfs.ext4", "-q", folder / "ext4"], check=True)
        (folder / "disk").mkdir()
        subprocess.run(["mount", "-o", "loop", folder / "ext4", folder / "disk"], check=True)
        engine = Engine(folder)
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        try:
            yield engine
        finally:
            engine.stop()
            subprocess.run(["umount", "--recursive", "--lazy", folder / "disk"], check=True)


def image_of(layout: Path, size: int) -> Image:
    """An image with one layer of this many bytes, which nothing can make smaller."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("content")
        member.size = size
        archive.addfile(member, io.BytesIO(os.urandom(size)))
    content = packed.getvalue()
    layer = Layer(
        group="rest", digest=f"sha256:{hashlib.sha256(content).hexdigest()}", size=len(content)
    )
    config: oci_layout.ImageConfig = {
        "architecture": "amd64",
        "config": {"Labels": {LOCK_LABEL: "0" * 64, TITLE_LABEL: "toy"}},
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }
    with oci_layout.staging(layout) as new:
        oci_layout.blob(new, layer.digest).write_bytes(content)
        written = oci_layout.write(new, config, [layer], {}, "provision/toy:1")
    return Image(
        reference="provision/toy:1", layout=layout, manifest_digest=written.manifest_digest, image_id=written.config_digest, base="none",
        base_digest="sha256:" + "0" * 64, lock_sha256="0" * 64, layers=(layer,),
    )  # fmt: skip


@pytest.mark.exhaustive
def test_image_larger_than_the_engines_disk(own: Engine, tmp_path: Path) -> None:
    client = own.start()
    with pytest.raises(NoSpace, match=r"The Docker engine needs about 180 MiB .*docker system df"):
        load_image(image_of(tmp_path / "large", 90 << 20), client, Watching())
    client.close()


def test_the_engines_disk_gets_full_during_load(own: Engine, tmp_path: Path) -> None:
    client = own.start()
    taken = own.folder / "disk" / "taken"
    with pytest.raises(
        NoSpace,
        match=r"The Docker engine's disk is full: could not load provision/toy:1.*docker system df",
    ):
        load_image(
            image_of(tmp_path / "large", 60 << 20),
            client,
            Striking(lambda: taken.write_bytes(bytes(100 << 20)), after=10 << 20),
        )
    taken.unlink()
    assert client.images.list(all=True) == []
    small = image_of(tmp_path / "small", 1 << 20)
    assert load_image(small, client, Watching())  # what was sent before is gone from its disk
    assert client.images.get(small.reference).id == small.image_id
    client.close()


@pytest.mark.exhaustive
def test_engine_killed_during_load(own: Engine, tmp_path: Path) -> None:
    client = own.start()
    toy = image_of(tmp_path / "toy", 30 << 20)
    with pytest.raises(Unreachable, match=r"broke: could not load provision/toy:1.*docker info"):
        load_image(toy, client, Striking(own.kill, after=10 << 20))
    client.close()
    client = own.start()
    assert client.images.list(all=True) == []
    assert load_image(toy, client, Watching())
    assert sorted(client.images.get(toy.image_id).tags) == [
        "provision/toy:1",
        "provision/toy:latest",
    ]
    client.close()


class Striking(Watching):
    """Does something once this many bytes were sent."""

    def __init__(self, strike: Callable[[], object], *, after: int) -> None:
        super().__init__()
        self._strike, self._after = strike, after

    def advance(self, amount: int) -> None:
        super().advance(amount)
        if self.advanced >= self._after:
            self._after = 1 << 60
            self._strike()
