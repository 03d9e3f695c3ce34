"""From a lock, a realized prefix and a base to an OCI image layout: same lock and base, same bytes, on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from provision.core.errors import InvalidSpec, disk_full_raises
from provision.core.types import Image, Layer, Lock, Prefix, Progress, Resolution
from provision.image import conda_files, config, layer_cache, oci_layout
from provision.image.base_images import BaseImage
from provision.image.cache_key import Recipe
from provision.image.layer_build import SPACE_ADVICE, Making

RECIPE = "org.provision.recipe"


def find(
    resolution: Resolution,
    lock: Lock,
    base: BaseImage,
    *,
    layout: Path,
    runtime: Mapping[str, bytes],
    progress: Progress,
    epoch: int = config.EPOCH,
) -> Image | None:
    """The image that already lies in `layout`, if building it now would give the same. Only layers whose files changed are read for
    it; one that is damaged is named and taken out, so that the next build makes it again."""
    own = conda_files.own_entries(runtime, resolution.python)
    return _find(
        Recipe(resolution=resolution, lock=lock, base=base, own=own, epoch=epoch), layout, progress
    )


def build(
    resolution: Resolution,
    lock: Lock,
    prefix: Prefix,
    base: BaseImage,
    *,
    layout: Path,
    runtime: Mapping[str, bytes],
    link: Callable[[Path], None],
    progress: Progress,
    epoch: int = config.EPOCH,
) -> Image:
    """Make the image layout, or keep the one that is there if it is already true. Layers that this layout or one beside it has already
    are not made again.

    link: fills an empty folder with the conda part of the lock; paths in its files name /opt/env. Called only if it is needed.
    A build that fails or is killed leaves the layout that was there before, or none.
    """
    conda_files.check_prefix(prefix, lock.sha256)
    _check_encoding()
    recipe = Recipe(
        resolution=resolution,
        lock=lock,
        base=base,
        own=conda_files.own_entries(runtime, resolution.python),
        epoch=epoch,
    )
    found = _find(recipe, layout, progress)
    if found is not None:
        return found
    with _space_for(layout), oci_layout.building(layout) as new:
        making = Making(
            recipe=recipe, prefix=prefix, layout=layout, new=new, link=link, progress=progress
        )
        written = _complete(recipe, new, making.layers())
    return _image(recipe, layout, written)


def _check_encoding() -> None:
    """Names in images are UTF-8, and would be others where this host's are not."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        raise InvalidSpec(
            f"File names here are {encoding}, by the locale, and UTF-8 in images.",
            advice="Set LC_ALL=C.UTF-8.",
        )


def _find(recipe: Recipe, layout: Path, progress: Progress) -> Image | None:
    written = oci_layout.read(layout)
    if written is None or written.annotations.get(RECIPE) != recipe.digest:
        return None
    damaged = layer_cache.damaged(layout, [layer.digest for layer in written.layers])
    for digest in damaged:
        progress.warn(
            f"the layer {digest[:19]} in {layout} was damaged: it is not what its digest says, and is made again"
        )
    if damaged:
        return None
    oci_layout.clear(layout)  # a build that was killed right after its end left what it replaced
    return _image(recipe, layout, written)


def _image(recipe: Recipe, layout: Path, written: oci_layout.Written) -> Image:
    return Image(
        reference=config.reference(recipe.resolution.spec.name, recipe.lock),
        layout=layout,
        manifest_digest=written.manifest_digest,
        image_id=written.config_digest,
        base=recipe.base.reference,
        base_digest=recipe.base.digest,
        lock_sha256=recipe.lock.sha256,
        layers=written.layers,
    )


def _complete(recipe: Recipe, new: Path, made: Sequence[Layer]) -> oci_layout.Written:
    document = config.image_config(recipe.variables, recipe.labels, made, recipe.epoch)
    annotations = {**recipe.labels, RECIPE: recipe.digest}
    return oci_layout.write(
        new, document, made, annotations, config.reference(recipe.resolution.spec.name, recipe.lock)
    )


@contextmanager
def _space_for(layout: Path) -> Iterator[None]:
    with disk_full_raises(f"The disk of {layout.parent} is full.", advice=SPACE_ADVICE):
        yield
