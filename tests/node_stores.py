"""Small packs and stores for tests of what runs on nodes."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import random
import socket
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from provision.cluster.pack import Sidecar
from provision.core.platforms import PLATFORM
from provision_runtime.facts.digests import prefix_digests
from provision_runtime.node import activation, install, transfer
from provision_runtime.node.errors import NodeError
from provision_runtime.node.results import Activation
from provision_runtime.node.store import Store, StoredPack, parse_pack
from tests.programs import write_program

# Folders of tests are closed to other users.
RUN = {"id": "run-1", "source": "laptop:1000:/data", "by": "ann@laptop", "readers": "me"}
NAME = "toy"
# A Python that starts. What a real one does is for the tests with real prefixes.
PYTHON = "#!/bin/sh\necho 3.11.7\n"


@dataclass(frozen=True, kw_only=True)
class PackedToy:
    """An image, and what its sidecar says of it."""

    pack: Sidecar
    image: bytes

    @property
    def key(self) -> str:
        return self.pack["key"]

    @property
    def parsed(self) -> StoredPack:
        return parse_pack(self.pack)


def pack_toy(folder: Path, version: str, python: str = PYTHON, filler: int = 0) -> PackedToy:
    """A tar.gz of a prefix whose files differ between versions. filler: bytes that do not
    compress."""
    prefix = folder / f"prefix-{version}"
    (prefix / "bin").mkdir(parents=True)
    write_program(prefix / "bin" / "python", python)
    (prefix / "version").write_text(version * 1000)
    (prefix / "filler").write_bytes(random.Random(version).randbytes(filler))
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w") as archive:
        archive.add(prefix, arcname=".", filter=_without_times)
    image = gzip.compress(text.getvalue(), mtime=0)
    return PackedToy(pack=sidecar(version, "tar", image, prefix), image=image)


def _without_times(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    return member


def sidecar(version: str, pack_format: str, image: bytes, prefix: Path) -> Sidecar:
    """What nodes need to know of a pack."""
    digest = hashlib.sha256(version.encode()).hexdigest()[:12]
    files = list(prefix.rglob("*"))
    fields = {
        "name": NAME,
        "key": f"{NAME}-{digest}",
        "format": pack_format,
        "size": len(image),
        "sha256": hashlib.sha256(image).hexdigest(),
        "root": prefix_digests(str(prefix), deep=True)["root"],
        "platform": PLATFORM,
        "glibc_min": "2.17",
        "unpacked_size": sum(file.stat().st_size for file in files if file.is_file()),
        "unpacked_files": len(files) + 1,
    }
    return cast("Sidecar", fields)


def pack_record(prefix: Path, name: str, key: str) -> dict[str, Any]:
    """What a node records of the pack that an environment was installed from."""
    return {
        "name": name,
        "key": key,
        "format": "tar",
        "size": 1,
        "sha256": "2" * 64,
        "root": prefix_digests(str(prefix), deep=True)["root"],
    }


@contextlib.contextmanager
def refused(reason: str, match: str | None = None) -> Iterator[None]:
    """An action that fails for this reason."""
    with pytest.raises(NodeError, match=match) as error:
        yield
    assert error.value.reason == reason


def receive(
    store: Store,
    toy: PackedToy,
    data: bytes | None = None,
    offset: int = 0,
    run: Mapping[str, str] = RUN,
) -> None:
    """Send an image, or other data, to the store."""
    stdin = SimpleNamespace(buffer=io.BytesIO(toy.image[offset:] if data is None else data))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("sys.stdin", stdin)
        transfer.receive(store.path, toy.pack, run, offset)


def ship(store: Store, toy: PackedToy, run: Mapping[str, str] = RUN) -> Activation:
    """Receive, install and activate an image."""
    receive(store, toy, run=run)
    install.install(store.path, NAME, toy.key, run)
    return activation.activate(store.path, NAME, toy.key, run)


def free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])
