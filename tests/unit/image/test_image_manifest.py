"""Documents of images from elsewhere: refused unless valid, before any of it becomes a path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provision.core.errors import IntegrityError, InvalidSpec, ProvisionError
from provision.image import manifest as manifests
from provision.image import oci_layout
from provision.image.registry.reference import base_registry_reference

AT = "registry.lab/toy:1"
DIGEST = f"sha256:{'ab' * 32}"


def row(**fields: Any) -> dict[str, Any]:
    return {"digest": DIGEST, "size": 10, "mediaType": oci_layout.LAYER, **fields}


CONFIG = row(mediaType=oci_layout.CONFIG)


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        ({"config": CONFIG}, IntegrityError),
        ({"config": CONFIG, "layers": []}, IntegrityError),
        ({"config": CONFIG, "layers": "many"}, IntegrityError),
        ({"config": CONFIG, "layers": ["one"]}, IntegrityError),
        ({"layers": [row()]}, IntegrityError),
        (
            {"config": row(mediaType="application/vnd.oci.empty.v1+json"), "layers": [row()]},
            InvalidSpec,
        ),
        (
            {"config": CONFIG, "layers": [row(digest="sha256:../../../../etc/passwd")]},
            IntegrityError,
        ),
        ({"config": CONFIG, "layers": [row(digest=f"{DIGEST}/..")]}, IntegrityError),
        ({"config": CONFIG, "layers": [row(digest=f"sha512:{'ab' * 64}")]}, IntegrityError),
        ({"config": CONFIG, "layers": [row(digest=None)]}, IntegrityError),
        ({"config": CONFIG, "layers": [row(size=-1)]}, IntegrityError),
        ({"config": CONFIG, "layers": [row(size=True)]}, IntegrityError),
        ({"config": CONFIG, "layers": [row(size="10")]}, IntegrityError),
        (
            {
                "config": CONFIG,
                "layers": [
                    row(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")
                ],
            },
            InvalidSpec,
        ),
        ({"config": CONFIG, "layers": [row(mediaType=["a list"])]}, IntegrityError),
    ],
)
def test_invalid_manifests_are_refused(
    manifest: dict[str, Any], error: type[ProvisionError]
) -> None:
    with pytest.raises(error, match="toy:1"):
        content = json.dumps(manifest).encode()
        root = manifests.Descriptor.of(content, oci_layout.MANIFEST)
        manifests.read_image(AT, root, content, lambda _: b"")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"1", b"[" * 100_000])
def test_invalid_json_is_refused(content: bytes) -> None:
    with pytest.raises(IntegrityError):
        manifests.parse(AT, content, "oci-manifest")


def config(**fields: Any) -> dict[str, Any]:
    return {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [DIGEST]}, **fields}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (config(architecture="arm64"), InvalidSpec),
        ({}, IntegrityError),
        (config(rootfs=None), IntegrityError),
        (config(rootfs={"diff_ids": [DIGEST] * 2}), IntegrityError),
        (config(rootfs={"diff_ids": ["../.."]}), IntegrityError),
        (config(config=["a list"]), IntegrityError),
        (config(config=[]), IntegrityError),
        (config(config=""), IntegrityError),
        (config(config=False), IntegrityError),
        (config(config={"Labels": "text"}), IntegrityError),
        (config(config={"Env": 1}), IntegrityError),
    ],
)
def test_invalid_configs_are_refused(content: dict[str, Any], error: type[ProvisionError]) -> None:
    with pytest.raises(error):
        manifests.check_config(AT, json.dumps(content).encode(), 1)


@pytest.mark.parametrize(
    "content", [config(), config(config=None), config(config={}), config(config={"Labels": None})]
)
def test_a_config_without_settings_is_valid_and_has_no_labels(content: dict[str, Any]) -> None:
    config = manifests.check_config(AT, json.dumps(content).encode(), 1)
    remote = manifests.ImageDocuments(
        source=AT, name="", digest=DIGEST, root_digest=DIGEST, media_type=oci_layout.MANIFEST, manifest=b"",
        config_digest=DIGEST, config=config, layers=(),
    )  # fmt: skip
    assert remote.labels == {}


def entry(
    os: str, architecture: str, digest: str = DIGEST, **more: Any
) -> oci_layout.DescriptorRow:
    platform: Any = {"os": os, "architecture": architecture, **more}
    return {"digest": digest, "size": 1, "mediaType": oci_layout.MANIFEST, "platform": platform}


def test_the_plain_amd64_entry_of_an_index_is_chosen() -> None:
    other = f"sha256:{'cd' * 32}"
    rows = [
        entry("unknown", "unknown"),
        entry("linux", "arm64"),
        entry("linux", "amd64", other, variant="v3"),
        entry("linux", "amd64"),
    ]
    assert manifests.platform_manifest(AT, {"manifests": rows}).digest == DIGEST
    unnamed: oci_layout.DescriptorRow = {
        "digest": other,
        "size": 1,
        "mediaType": oci_layout.MANIFEST,
    }
    assert manifests.platform_manifest(AT, {"manifests": [unnamed, *rows]}).digest == DIGEST
    assert manifests.platform_manifest(AT, {"manifests": [rows[3], rows[3]]}).digest == DIGEST
    for ambiguous in ([], rows[:2], [rows[3], entry("linux", "amd64", other)]):
        with pytest.raises(InvalidSpec, match="linux/amd64"):
            manifests.platform_manifest(AT, {"manifests": ambiguous})


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ("many", "manifests: "),
        (None, "manifests: "),
        (["no entry"], r"manifests\[0\]: "),
        ([entry("linux", "amd64"), {"platform": 1}], r"manifests\[1\]"),
        ([entry("linux", "amd64", digest="sha256/../..")], r"manifests\[0\]\.digest: "),
    ],
)
def test_an_invalid_index_names_the_entry_and_the_field(entries: object, field: str) -> None:
    content = json.dumps({"manifests": entries}).encode()
    with pytest.raises(IntegrityError, match=f"toy:1: invalid index: {field}"):
        manifests.parse(AT, content, "oci-index")


@pytest.mark.parametrize(
    ("reference", "url", "base_reference"),
    [
        ("debian", "https://registry-1.docker.io/v2/library/debian/", "latest"),
        (
            "debian:bookworm-slim",
            "https://registry-1.docker.io/v2/library/debian/",
            "bookworm-slim",
        ),
        (
            f"docker.io/library/debian:12@{DIGEST}",
            "https://registry-1.docker.io/v2/library/debian/",
            DIGEST,
        ),
        ("nvidia/cuda:12.1", "https://registry-1.docker.io/v2/nvidia/cuda/", "12.1"),
        ("registry.lab/debian", "https://registry.lab/v2/debian/", "latest"),
        (f"localhost:5000/a/b@{DIGEST}", "http://localhost:5000/v2/a/b/", DIGEST),
    ],
)
def test_the_registry_of_a_base(reference: str, url: str, base_reference: str) -> None:
    result = base_registry_reference(reference)
    assert (result.api_url, result.tag_or_digest) == (url, base_reference)


def test_image_id_has_no_registry() -> None:
    with pytest.raises(InvalidSpec, match="image id"):
        base_registry_reference(DIGEST)
