"""Base images on disk; no engine takes part."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    ProvisionError,
    ToolMissing,
)
from provision.image import base, disk_base, layers, manifest, oci_layout
from tests.unit.image.test_image_layers import archive, digest, ignore

ENVIRONMENT = ["PATH=/bin", "LANG=C"]


LIBC = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"
LAYERS = [
    archive(("bin/sh", b"shell"), ("lib/x86_64-linux-gnu/libc.so.6", LIBC)),
    archive(("etc/os-release", b"debian")),
]


def config(architecture: str = "amd64", parts: list[bytes] | None = None) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [digest(layer) for layer in parts or LAYERS]}
    return json.dumps(
        {
            "os": "linux",
            "architecture": architecture,
            "config": {"Env": ENVIRONMENT},
            "rootfs": rootfs,
        }
    ).encode()


def layout(
    folder: Path,
    *,
    nested: bool = False,
    platforms: tuple[str, ...] = ("amd64",),
    name: str | None = "lab:12",
) -> Path:
    """An OCI image layout as other tools write it; nested: an index in the index, as buildx has it."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, media: str, **more: Any) -> dict[str, Any]:
        value = digest(content)
        (blobs / value.removeprefix("sha256:")).write_bytes(content)
        return {"mediaType": media, "digest": value, "size": len(content), **more}

    rows = []
    for platform in platforms:
        parts = [put(layer, oci_layout.LAYER) for layer in LAYERS]
        manifest = {
            "schemaVersion": 2,
            "mediaType": oci_layout.MANIFEST,
            "config": put(config(platform), oci_layout.CONFIG),
            "layers": parts,
        }
        documents = (
            {"platform": {"os": "linux", "architecture": platform}} if len(platforms) > 1 else {}
        )
        rows.append(put(json.dumps(manifest).encode(), oci_layout.MANIFEST, **documents))
    if nested:
        rows = [
            put(
                json.dumps(
                    {"schemaVersion": 2, "mediaType": oci_layout.INDEX, "manifests": rows}
                ).encode(),
                oci_layout.INDEX,
            )
        ]
    if name:
        rows[0]["annotations"] = {"org.opencontainers.image.ref.name": name}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def layers_of(base: Any, folder: Path) -> list[bytes]:
    folder.mkdir(parents=True)
    layers.write_base(base.archive(), base.diff_ids, folder, ignore)
    return [(folder / diff_id.removeprefix("sha256:")).read_bytes() for diff_id in base.diff_ids]


@pytest.mark.parametrize("kind", ["oci", "nested", "platforms"])
def test_base_on_disk_is_read_completely(tmp_path: Path, kind: str) -> None:
    folder = layout(
        tmp_path / "base",
        nested=kind == "nested",
        platforms=("arm64", "amd64") if kind == "platforms" else ("amd64",),
    )
    base = disk_base.read_disk_base(f"oci:{folder}")
    assert (base.digest, base.environment) == (digest(config()), tuple(ENVIRONMENT))
    assert base.reference == ("lab:12" if kind != "platforms" else base.digest)
    assert layers_of(base, tmp_path / "blobs") == LAYERS


def test_path_of_a_base_is_not_in_its_name(tmp_path: Path) -> None:
    assert disk_base.read_disk_base(f"oci:{layout(tmp_path / 'a', name=None)}").reference == digest(
        config()
    )


def test_a_base_that_docker_saved_has_its_full_name(tmp_path: Path) -> None:
    """Docker's annotation of the specification holds the tag alone."""
    index = layout(tmp_path / "a", name="bookworm") / "index.json"
    document = json.loads(index.read_text())
    name = "docker.io/library/debian:bookworm"
    document["manifests"][0]["annotations"][manifest.CONTAINERD_NAME] = name
    index.write_text(json.dumps(document))
    assert disk_base.read_disk_base(f"oci:{tmp_path / 'a'}").reference == name


def broken(folder: Path, what: str) -> str:
    folder_of_layout = layout(
        folder / "base", platforms=("arm64",) if what == "platform" else ("amd64",)
    )
    blob = oci_layout.blob(folder_of_layout, digest(LAYERS[1]))
    if what == "nothing":
        return f"oci:{folder / 'nowhere'}"
    if what == "lacks":
        blob.unlink()
    if what == "index":
        (folder_of_layout / "index.json").write_text("{")
    if what == "manifest":
        row = json.loads((folder_of_layout / "index.json").read_text())["manifests"][0]
        oci_layout.blob(folder_of_layout, row["digest"]).write_text("{}")
    if what == "config":
        oci_layout.blob(folder_of_layout, digest(config())).write_bytes(
            config().replace(b"LANG=C", b"LANG=D")
        )
    if what == "size":
        with (folder_of_layout / "index.json").open("ab") as index_file:
            index_file.truncate(manifest.DOCUMENT_LIMIT + 2)
    if what == "escape":
        index = json.loads((folder_of_layout / "index.json").read_text())
        index["manifests"][0]["digest"] = "sha256:../../../../../../../../etc/passwd"
        (folder_of_layout / "index.json").write_text(json.dumps(index))
    return f"oci:{folder_of_layout}"


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("nothing", ToolMissing, "not a folder with an OCI image layout"),
        ("platform", InvalidSpec, "is for linux/arm64"),
        ("lacks", IntegrityError, "lacks its layer"),
        ("index", IntegrityError, "is not JSON"),
        ("manifest", IntegrityError, "does not match its digest"),
        ("escape", IntegrityError, "digest: .* does not match"),
        ("config", IntegrityError, "does not match its digest"),
        ("size", IntegrityError, "is not JSON"),
    ],
)
def test_an_incomplete_base_is_refused(
    tmp_path: Path, what: str, error: type[ProvisionError], message: str
) -> None:
    with pytest.raises(error, match=message):
        disk_base.read_disk_base(broken(tmp_path, what))


ZEROS = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "index",
    [
        [],
        {},
        {"manifests": None},
        {"manifests": [5]},
        {"manifests": [{"mediaType": oci_layout.MANIFEST}]},
        {"manifests": [{"mediaType": oci_layout.MANIFEST, "digest": 5}]},
        {
            "manifests": [
                {"mediaType": oci_layout.MANIFEST, "digest": ZEROS, "platform": {"os": "linux"}}
            ]
        },
        {"manifests": [{"mediaType": oci_layout.MANIFEST, "digest": ZEROS, "platform": 5}]},
    ],
)
def test_empty_index_is_refused(tmp_path: Path, index: object) -> None:
    (layout(tmp_path / "x") / "index.json").write_text(json.dumps(index))
    with pytest.raises((IntegrityError, InvalidSpec), match=r"invalid index|holds 0 images"):
        disk_base.read_disk_base(f"oci:{tmp_path / 'x'}")


def long_names(kind: bytes, size: int, count: int) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return (
        (member.tobuf(tarfile.USTAR_FORMAT) + bytes(-(-size // 512) * 512)) * count
        + tarfile.TarInfo("a").tobuf()
        + bytes(1024)
    )


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
@pytest.mark.parametrize(("size", "count"), [(2 << 20, 1), (10, 3000)])
def test_oversized_member_names_are_refused(
    tmp_path: Path, kind: bytes, size: int, count: int
) -> None:
    content = long_names(kind, size, count)
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(IntegrityError, match="is not a tar archive"):
        base.check_base("evil", [tmp_path / "x.tar"], "2.28")
    with pytest.raises(IntegrityError, match="cannot be read"):
        layers.write_base([content], [ZEROS], tmp_path, ignore)


def test_a_flipped_bit_in_a_layer_is_refused(tmp_path: Path) -> None:
    folder = layout(tmp_path / "base")
    blob = oci_layout.blob(folder, digest(LAYERS[0]))
    content = bytearray(blob.read_bytes())
    content[600] ^= 1
    blob.write_bytes(content)
    with pytest.raises(IntegrityError, match="lacks its layer"):
        layers_of(disk_base.read_disk_base(f"oci:{folder}"), tmp_path / "blobs")


def test_other_forms_of_a_base_are_refused_with_ours(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing) as missing:
        disk_base.read_disk_base(f"oci:{layout(tmp_path / 'the base')}:12")
    assert "without a tag" in missing.value.advice
    for text in ("docker://debian:bookworm", "docker-daemon:debian:bookworm"):
        with pytest.raises(InvalidSpec) as refused:
            base.chosen_base(text)
        assert refused.value.advice.startswith("Write debian:bookworm, without docker")
    for text in ("docker-archive:base.tar", "oci-archive:/srv/base.tar"):
        with pytest.raises(InvalidSpec, match="is an archive"):
            base.chosen_base(text)
