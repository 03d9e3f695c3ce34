"""From a lock, a prefix and a base to an OCI image layout: the same lock and base give the same
bytes on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from provision.core.errors import InvalidSpec
from provision.core.system_errors import disk_full_raises
from provision.core.types import Image, Progress
from provision.image import config, layer_cache, oci_layout
from provision.image.cache_key import Recipe
from provision.image.layer_build import PACKAGES, SPACE_ADVICE, LayerBuild
from provision.image.oci_layout import LayoutManifest

RECIPE = "org.provision.recipe"


def find_image(recipe: Recipe, layout: Path, progress: Progress) -> Image | None:
    """The image in `layout`, if building it now would give the same image.

    Only layers whose files changed are read. Corrupt layers are reported and removed, so that the
    next build makes them again.
    """
    manifest = oci_layout.read(layout)
    if manifest is None or manifest.annotations.get(RECIPE) != recipe.digest:
        return None
    corrupt = layer_cache.quarantine_corrupt(layout, [layer.digest for layer in manifest.layers])
    for digest in corrupt:
        progress.warn(
            f"the layer {digest[:19]} in {layout} is corrupt: it does not match its digest and is "
            "made again"
        )
    if corrupt:
        return None
    # A build that was killed right after it finished left the layout that it replaced.
    oci_layout.remove_leftovers(layout)
    return _image(recipe.resolution.spec.name, layout, manifest)


def built_image(layout: Path, name: str) -> Image | None:
    """The image that was made for an environment in a layout; None if there is no complete one."""
    manifest = oci_layout.read(layout)
    return _image(name, layout, manifest) if manifest else None


def build_image(
    recipe: Recipe,
    *,
    layout: Path,
    install: Callable[[Path], None],
    byte_code: Path | None,
    progress: Progress,
) -> Image:
    """Build the image layout, or return the existing one if it is current. Reuses layers of this
    layout and of those next to it.

    install: fills a new directory with the packages of the lock; paths in their files name /opt/env.
    Called only if needed. byte_code: a prefix of the lock, whose byte code the image gets. A build
    that fails or is killed leaves the previous layout unchanged.
    """
    # File names in images are UTF-8; under another locale they would differ.
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        raise InvalidSpec(
            f"The locale's encoding of file names is {encoding}, but images need UTF-8.",
            advice="Set LC_ALL=C.UTF-8.",
        )
    image = find_image(recipe, layout, progress)
    if image is not None:
        return image
    with disk_full_raises(layout, SPACE_ADVICE), oci_layout.staging(layout) as new:
        build = LayerBuild(
            recipe=recipe,
            byte_code=byte_code,
            layout=layout,
            new=new,
            install=install,
            progress=progress,
        )
        layers = build.layers()
        manifest = oci_layout.write(
            new,
            recipe.config(layers),
            layers,
            {**recipe.labels, RECIPE: recipe.digest, PACKAGES: recipe.packages_digest},
            config.image_reference(recipe.resolution.spec.name, recipe.lock),
        )
    return _image(recipe.resolution.spec.name, layout, manifest)


def _image(name: str, layout: Path, manifest: LayoutManifest) -> Image:
    labels = manifest.annotations
    lock_sha256 = labels[config.LOCK_LABEL]
    return Image(
        reference=f"{config.repository(name)}:{lock_sha256[:12]}",
        layout=layout,
        manifest_digest=manifest.manifest_digest,
        image_id=manifest.config_digest,
        base=labels[config.BASE_NAME],
        base_digest=labels[config.BASE_ID],
        lock_sha256=lock_sha256,
        layers=manifest.layers,
    )
