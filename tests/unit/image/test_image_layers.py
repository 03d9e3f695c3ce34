"""Layers: their groups, their bytes, and copies of a base's layers, complete or refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provision.adapters.zstd import zstd
from provision.core.errors import IntegrityError
from provision.core.tar import CHUNK
from provision.core.types import LockedPackage, Manager
from provision.image import layer_groups, layers
from provision.image.layers import LayerEntry


def ignore(amount: int) -> None:
    pass


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def archive(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def pieces(content: bytes, size: int = 777) -> Iterator[bytes]:
    yield from (content[start : start + size] for start in range(0, len(content), size))


def test_a_layer_is_a_tar_under_its_own_digest(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3 * CHUNK + 5))
    big.chmod(0o755)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    entries = [
        layers.file_entry("opt/env/big", big, hashlib.sha256(big.read_bytes()).hexdigest()),
        LayerEntry(path="opt/env/link", kind="link", target="big", mode=0o777),
        LayerEntry.of("opt/env/small", b"text"),
        LayerEntry(path="workspace", kind="folder", mode=0o1777),
    ]
    counted: list[int] = []
    layer = layers.write_layer("rest", entries, blobs, 315532800, counted.append)
    (blob,) = blobs.iterdir()
    assert (f"sha256:{blob.name}", blob.stat().st_size) == (layer.digest, layer.size)
    assert digest(blob.read_bytes()) == layer.digest
    with tarfile.open(blob) as tar:
        assert tar.getnames() == [
            "opt",
            "opt/env",
            "opt/env/big",
            "opt/env/link",
            "opt/env/small",
            "workspace",
        ]
        assert tar.extractfile("opt/env/big").read() == big.read_bytes()  # type: ignore[union-attr]
        assert tar.extractfile("opt/env/small").read() == b"text"  # type: ignore[union-attr]
        assert {member.mtime for member in tar} == {315532800}
        assert tar.getmember("workspace").mode == 0o1777
    assert sum(counted) == big.stat().st_size + 4


@pytest.mark.parametrize("size", [9, 11])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    with pytest.raises(IntegrityError, match="changed while it was read"):
        layers.write_layer(
            "rest", [LayerEntry(path="x", source=source, size=size)], tmp_path, 0, ignore
        )
    assert list(tmp_path.iterdir()) == [source]


def test_a_file_that_does_not_match_its_record_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"edited")
    entry = LayerEntry(path="x", source=source, size=6, sha256="0" * 64)
    with pytest.raises(IntegrityError, match="is not the file of its package"):
        layers.write_layer("rest", [entry], tmp_path, 0, ignore)


def parts(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A compressed file made of several, one after the other."""
    return lambda content: compress(content[:5]) + compress(content[5:])


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, parts(gzip.compress), zstd.compress, parts(zstd.compress)],
    ids=["plain", "gzip", "gzip-parts", "zstd", "zstd-parts"],
)
def test_layers_of_a_base_are_recognized_by_their_digests(tmp_path: Path, pack: object) -> None:
    first, second = b"first layer" * 200000, b"second"
    assert callable(pack)
    content = archive(
        ("a/layer.tar", pack(second)),
        ("a/json", b"{}"),
        ("blobs/sha256/x", pack(first)),
        ("manifest.json", b"[]"),
    )
    sizes: list[int] = []
    layers.write_base(pieces(content), [digest(first), digest(second)], tmp_path, sizes.append)
    assert list(filter(None, sizes)) == [len(second), len(first)]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        digest(first)[7:]: first,
        digest(second)[7:]: second,
    }


def test_a_base_that_lacks_a_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=digest(b"absent")):
        layers.write_base(pieces(archive(("x", b"other"))), [digest(b"absent")], tmp_path, ignore)


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("harm", ["cut", "flipped"])
def test_a_corrupt_compressed_layer_is_refused(
    tmp_path: Path, pack: Callable[[bytes], bytes], harm: str
) -> None:
    whole = os.urandom(300000)
    packed = bytearray(pack(whole))
    if harm == "cut":
        del packed[-1000:]
    else:
        packed[150000] ^= 1
    with pytest.raises(IntegrityError):
        layers.write_base(pieces(archive(("x", bytes(packed)))), [digest(whole)], tmp_path, ignore)
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_needs_much_memory_is_refused(tmp_path: Path) -> None:
    far = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 30})
    packed = (
        far.compress(b"x" * 100) + far.flush()
    )  # a frame of unknown size, which looks back 1 GiB
    with pytest.raises(IntegrityError, match="cannot be read"):
        layers.write_base(pieces(archive(("x", packed))), [digest(b"x" * 100)], tmp_path, ignore)


def test_a_truncated_base_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError):
        layers.write_base(
            pieces(archive(("x", b"layer" * 1000))[:2000]),
            [digest(b"layer" * 1000)],
            tmp_path,
            ignore,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_a_layer_that_expands_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(layers, "MIN_EXPANDED_LIMIT", CHUNK)
    whole = bytes(8 * CHUNK)
    with pytest.raises(IntegrityError, match="are not a layer"):
        layers.write_base(pieces(archive(("x", pack(whole)))), [digest(whole)], tmp_path, ignore)
    assert list(tmp_path.iterdir()) == []


def package(name: str, manager: Manager = "pip", version: str = "1.0") -> LockedPackage:
    return LockedPackage(
        manager=manager,
        name=name,
        version=version,
        url=f"https://example.org/{name}",
        sha256="0" * 64,
    )


@pytest.mark.parametrize(
    ("manager", "name", "size", "group"),
    [
        ("conda", "python", 0, "python"),
        ("conda", "nvidia-something", 0, "python"),
        ("conda", "libcublas", 0, "cuda"),
        ("conda", "libcurl", 0, "python"),
        ("conda", "cuda-cudart_linux-64", 0, "cuda"),
        ("conda", "pytorch", 0, "torch"),
        ("conda", "libtorch", 0, "torch"),
        ("pip", "nvidia-nccl-cu12", 0, "cuda"),
        ("pip", "nvidia_cublas_cu12", 10**9, "cuda"),
        ("pip", "cuda-bindings", 0, "cuda"),
        ("pip", "torch", 10**9, "torch"),
        ("pip", "triton", 0, "torch"),
        ("pip", "torchvision", 6_999_999, "large"),
        ("pip", "numpy", layer_groups.LARGE, "large"),
        ("pip", "numpy", layer_groups.LARGE - 1, "rest"),
        ("pip", "Jinja2", 0, "rest"),
    ],
)
def test_the_group_of_a_package(manager: Manager, name: str, size: int, group: str) -> None:
    assert layer_groups.group_of(package(name, manager), size) == group


def test_a_file_that_grows_or_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 128)
    entry = layers.file_entry("opt/file", path, "0" * 64)
    for content in (b"x" * 129, b"x" * 127):
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match="changed while it was read"):
            layers._copy_file(entry, path, io.BytesIO(), lambda _: None)  # type: ignore[arg-type]
