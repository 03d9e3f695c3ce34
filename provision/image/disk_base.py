"""Base images on disk: an OCI image layout, as `skopeo copy`, `buildah push` or an unpacked `docker
save` writes it.

With one of these an image is built without an engine. The digests of layers are checked when they
are copied (layers.write_base).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.core import tar
from provision.core.errors import IntegrityError, ToolMissing
from provision.core.platforms import PLATFORM, Platform
from provision.image import oci_layout
from provision.image.base import ON_DISK, BaseImage
from provision.image.manifest import DOCUMENT_LIMIT, Descriptor, ImageDocuments, read_image

ADVICE = "Copy or save the image again."


def read_disk_base(reference: str, platform: Platform | None = PLATFORM) -> BaseImage:
    """The base that `oci:DIR` names.

    ToolMissing if nothing is there, IntegrityError if it is not a complete image, InvalidSpec for
    another platform.
    """
    image, paths = read_layout(reference, platform)
    return BaseImage(
        # Never the path: it belongs to this machine, and would give the same image another digest
        # elsewhere.
        reference=image.name or image.config_digest,
        digest=image.config_digest,
        size=sum(path.stat().st_size for path in paths),
        diff_ids=tuple(image.config["rootfs"]["diff_ids"]),
        environment=tuple(image.settings.get("Env") or ()),
        archive=lambda: _layer_archive(paths),
    )


def read_layout(
    reference: str, platform: Platform | None = PLATFORM
) -> tuple[ImageDocuments, list[Path]]:
    """The image that `oci:DIR` names, and its layers. Raises as `read_disk_base`."""
    layout = _find_layout(reference)

    def read(descriptor: Descriptor) -> bytes:
        return _read(oci_layout.blob(layout, descriptor.digest))

    content = _read(layout / oci_layout.INDEX_FILE)
    index = Descriptor.of(content, oci_layout.INDEX)
    image = read_image(reference, index, content, read, platform)
    paths = [oci_layout.blob(layout, layer.digest) for layer in image.layers]
    for path in paths:
        if not path.is_file():
            raise IntegrityError(f"{layout} lacks its layer {path.name}.", advice=ADVICE)
    return image, paths


def _find_layout(reference: str) -> Path:
    name = reference.removeprefix(ON_DISK)
    layout = Path(name)
    if (layout / oci_layout.INDEX_FILE).is_file():
        return layout
    raise ToolMissing(
        f"There is no image {reference}: {layout} is not a folder with an OCI image layout.",
        advice="Name an existing one, without a tag. `skopeo copy SOURCE oci:DIR` makes one of an "
        "archive (docker-archive:FILE, oci-archive:FILE) or of one image of several.",
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(DOCUMENT_LIMIT + 1)
    except FileNotFoundError as error:
        raise IntegrityError(
            f"{path} is missing, so its folder is not a complete image.", advice=ADVICE
        ) from error


def _layer_archive(paths: Sequence[Path]) -> Iterator[bytes]:
    """The layers alone, as a tar stream."""
    for path in dict.fromkeys(paths):
        yield from tar.file_member(path.name, path.stat().st_size, tar.file_chunks(path))
    yield tar.END
