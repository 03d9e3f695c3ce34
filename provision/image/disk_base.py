"""Base images on disk: an OCI image layout, as `skopeo copy`, `buildah push` or an unpacked `docker
save` writes it.

With one of these an image is built without an engine. The digests of layers are checked when they
are copied (layers.write_base).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.core import tar
from provision.core.container import PREFIX
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.image import oci_layout
from provision.image.base import ON_DISK, BaseImage
from provision.image.config import BASE_ID, BASE_NAME
from provision.image.manifest import DOCUMENT_LIMIT, Descriptor, read_image

ADVICE = "Copy or save the image again."


def read_disk_base(reference: str) -> BaseImage:
    """The base that `oci:DIR` names.

    ToolMissing if nothing is there, IntegrityError if it is not a complete image, InvalidSpec for
    another platform.
    """
    layout = _find_layout(reference)

    def read(descriptor: Descriptor) -> bytes:
        return _read(oci_layout.blob(layout, descriptor.digest))

    content = _read(layout / oci_layout.INDEX_FILE)
    index = Descriptor(
        digest=oci_layout.sha256_digest(content),
        size=len(content),
        media_type=oci_layout.INDEX,
        annotations={},
    )
    image = read_image(reference, index, content, read)
    paths = [oci_layout.blob(layout, layer.digest) for layer in image.layers]
    for path in paths:
        if not path.is_file():
            raise IntegrityError(f"{layout} lacks its layer {path.name}.", advice=ADVICE)
    return BaseImage(
        # Never the path: it belongs to this machine, and would give the same image another digest
        # elsewhere.
        reference=image.name or image.config_digest,
        digest=image.config_digest,
        size=sum(path.stat().st_size for path in paths),
        diff_ids=image.diff_ids,
        environment=image.environment,
        archive=lambda: _layer_archive(paths),
    )


def _find_layout(reference: str) -> Path:
    name = reference.removeprefix(ON_DISK)
    layout = Path(name)
    if layout.is_dir():
        return layout
    folder = name.rpartition(":")[0]
    if folder and Path(folder).is_dir():
        raise InvalidSpec(
            f"{reference} names a tag, as skopeo does; provision takes a layout with one image.",
            advice=f"Write oci:{folder}; `skopeo copy {shlex.quote(reference)} oci:OTHER` "
            "copies one image of several.",
        )
    raise ToolMissing(
        f"There is no base {reference}: {layout} is not a folder with an OCI image layout.",
        advice="Choose an existing one with --base. `tar -xf FILE -C DIR` unpacks an archive with "
        "a layout, which `docker save` writes since Docker 25.",
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


def recorded_base(layout: Path, reference: str) -> BaseImage | None:
    """The base that the image in one of our layouts was made from, if it was named `reference`.

    Tells whether that image is current where the base itself was removed from the engine. No image
    is built from it: its variables are those of our image, and a later request may need fewer.
    """
    manifest = oci_layout.read(layout)
    if manifest is None or manifest.annotations.get(BASE_NAME) != reference:
        return None
    path_of_image = f"PATH={PREFIX}/bin:"
    variables = []
    settings = oci_layout.read_config(layout, manifest.config_digest).get("config") or {}
    for pair in settings["Env"]:
        if pair.startswith(path_of_image):
            pair = "PATH=" + pair.removeprefix(path_of_image)
        variables.append(pair)
    layers = [layer for layer in manifest.layers if layer.group == "base"]
    paths = [oci_layout.blob(layout, layer.digest) for layer in layers]
    return BaseImage(
        reference=reference,
        digest=manifest.annotations[BASE_ID],
        size=sum(layer.size for layer in layers),
        diff_ids=tuple(layer.digest for layer in layers),
        environment=tuple(variables),
        archive=lambda: _layer_archive(paths),
    )
