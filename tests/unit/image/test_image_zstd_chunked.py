"""Layers in zstd:chunked, read with a parser that shares nothing with the writer."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import struct
import tarfile
from pathlib import Path

import pytest

from provision.adapters.zstd import zstd
from provision.core import parallel
from provision.core.crc64 import crc64
from provision.core.errors import IntegrityError
from provision.core.types import Image
from provision.image import compress, layers, oci_layout, zstd_chunked
from provision.image.layers import LayerEntry
from tests.unit.image.test_image_build import Quiet
from tests.unit.image.test_image_compress import make_image

LARGE = random.Random(5).randbytes(300_000)
PART = 100_000
KEY = "io.github.containers.zstd-chunked."
ENTRIES = [
    LayerEntry(path="bin/python", kind="link", target="python3.11", mode=0o777),
    LayerEntry.of("bin/run", b"#!/bin/sh\n", executable=True),
    LayerEntry.of("empty", b""),
    LayerEntry.of("lib/grüße", b"x"),
    LayerEntry.of("lib/large", LARGE),
    LayerEntry.of(f"lib/{'d' * 120}/{'n' * 130}", b"a long name"),
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd_chunked, "PART", PART)


def layer_image(folder: Path, entries: list[LayerEntry], group: str = "rest") -> Image:
    """An image with one layer."""
    blobs = oci_layout.blobs(folder)
    blobs.mkdir(parents=True)
    ordered = sorted(entries, key=lambda entry: entry.path)
    return make_image(
        folder, written=[layers.write_layer(group, ordered, blobs, 1_700_000_000, lambda _: None)]
    )


def packed(image: Image, folder: Path) -> tuple[bytes, dict[str, str]]:
    """The compressed layer, and its annotations in the manifest."""
    made = compress.compress_image(image, "zstd:chunked", folder, Quiet())
    manifest = json.loads(oci_layout.blob(made.layout, made.manifest_digest).read_bytes())
    (row,) = manifest["layers"]
    assert row["mediaType"] == "application/vnd.oci.image.layer.v1.tar+zstd"
    return oci_layout.blob(made.layout, row["digest"]).read_bytes(), row["annotations"]


def unpack(frame: bytes) -> bytes:
    """Exactly one frame."""
    decompressor = zstd.ZstdDecompressor()
    content: bytes = decompressor.decompress(frame)
    assert decompressor.eof
    assert not decompressor.unused_data
    return content


def test_a_reader_finds_each_file_by_the_annotations(tmp_path: Path) -> None:
    image = layer_image(tmp_path / "toy", ENTRIES)
    plain = oci_layout.blob(image.layout, image.layers[0].digest).read_bytes()
    blob, annotations = packed(image, tmp_path / "packed")
    start, length, size, kind = map(int, annotations[f"{KEY}manifest-position"].split(":"))
    headers_at = [int(part) for part in annotations[f"{KEY}tarsplit-position"].split(":")]
    table_frame = blob[start : start + length]
    digest = f"sha256:{hashlib.sha256(table_frame).hexdigest()}"
    assert annotations[f"{KEY}manifest-checksum"] == digest
    magic, footer_size, *footer = struct.unpack("<II7Q8s", blob[-72:])
    assert (magic, footer_size) == (0x184D2A50, 64)
    assert footer == [start, length, size, kind, *headers_at, b"GNUlInUx"]
    toc = json.loads(unpack(table_frame))
    assert (toc["version"], kind, len(unpack(table_frame))) == (1, 1, size)
    headers = blob[headers_at[0] : headers_at[0] + headers_at[1]]
    assert toc["tarSplitDigest"] == f"sha256:{hashlib.sha256(headers).hexdigest()}"

    # Each file from its own range alone.
    contents: dict[str, bytes] = {}
    for row in toc["entries"]:
        if "offset" in row:
            part = (
                unpack(blob[row["offset"] : row["endOffset"]])
                if row.get("size", 0) <= PART
                else b""
            )
            if row.get("chunkSize"):
                end = next(
                    (
                        other["offset"]
                        for other in toc["entries"]
                        if other["name"] == row["name"] and other.get("offset", 0) > row["offset"]
                    ),
                    row["endOffset"],
                )
                part = unpack(blob[row["offset"] : end])
                assert len(contents.get(row["name"], b"")) == row.get("chunkOffset", 0)
                assert len(part) == row["chunkSize"]
                assert row["chunkDigest"] == f"sha256:{hashlib.sha256(part).hexdigest()}"
            contents[row["name"]] = contents.get(row["name"], b"") + part
    rows = {row["name"]: row for row in toc["entries"] if row["type"] != "chunk"}
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        members = archive.getmembers()
        assert len(members) == len(rows)
        for member in members:
            row = rows[member.name + ("/" if member.isdir() else "")]
            assert (row["mode"], row["size"]) == (member.mode, member.size)
            assert row["modtime"] == "2023-11-14T22:13:20Z"
            assert row.get("linkName", "") == member.linkname
            if member.size:
                file = archive.extractfile(member)
                assert file is not None
                expected = file.read()
                assert contents[member.name] == expected
                assert row["digest"] == f"sha256:{hashlib.sha256(expected).hexdigest()}"

    # The tar again, from its headers and the files.
    rebuilt = b""
    for position, line in enumerate(unpack(headers).splitlines()):
        segment = json.loads(line)
        assert segment["position"] == position
        payload = base64.b64decode(segment["payload"])
        if segment["type"] == 1 and segment["size"]:
            content = contents[segment["name"]]
            assert int.from_bytes(payload, "big") == crc64(content)
            rebuilt += content
        elif segment["type"] == 2:
            rebuilt += payload
    assert rebuilt == plain


def test_a_reader_without_the_table_reads_the_same_tar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = layer_image(tmp_path / "toy", ENTRIES)
    monkeypatch.setattr(parallel, "usable_cpus", lambda: 1)
    blob, _ = packed(image, tmp_path / "one")
    monkeypatch.setattr(parallel, "usable_cpus", lambda: 4)
    assert blob == packed(image, tmp_path / "four")[0]
    plain = b"".join(layers.decompress(io.BytesIO(blob)))
    assert f"sha256:{hashlib.sha256(plain).hexdigest()}" == image.layers[0].digest


@pytest.mark.parametrize("what", ["base", "name"])
def test_layers_without_a_table(tmp_path: Path, what: str) -> None:
    """A base may have any kind of tar, and JSON holds no names that are not UTF-8."""
    entries = [LayerEntry.of(os.fsdecode(b"caf\xe9") if what == "name" else "file", b"x" * 1000)]
    group = "base" if what == "base" else "rest"
    image = layer_image(tmp_path / "toy", entries, group)
    blob, annotations = packed(image, tmp_path / "packed")
    assert list(annotations) == [oci_layout.GROUP]
    plain = b"".join(layers.decompress(io.BytesIO(blob)))
    assert f"sha256:{hashlib.sha256(plain).hexdigest()}" == image.layers[0].digest


@pytest.mark.parametrize("place", [100, 1500, 100_000])
def test_a_damaged_layer_is_refused(tmp_path: Path, place: int) -> None:
    image = layer_image(tmp_path / "toy", ENTRIES)
    path = oci_layout.blob(image.layout, image.layers[0].digest)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="is corrupt"):
        compress.compress_image(image, "zstd:chunked", tmp_path / "packed", Quiet())
    assert not list((tmp_path / "packed").rglob("index.json"))


def test_zstd_and_zstd_chunked_are_kept_side_by_side(tmp_path: Path) -> None:
    image = layer_image(tmp_path / "toy", ENTRIES)
    chunked = compress.compress_image(image, "zstd:chunked", tmp_path / "packed", Quiet())
    compress.compress_image(image, "zstd", tmp_path / "packed", Quiet())
    assert oci_layout.read(chunked.layout) is not None
    again = compress.compress_image(image, "zstd:chunked", tmp_path / "packed", Quiet())
    assert again == chunked
