"""From a lock, a realized prefix and a base to an OCI image layout: same lock and base, same bytes, on any machine."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provision.errors import NoSpace
from provision.model import Image, Layer, Lock, Prefix, Progress, Resolution
from provision.pipeline.image import config, contents, inspecting, layers, oci
from provision.pipeline.image.bases import BaseImage
from provision.pipeline.image.contents import Entry

RECIPE = "org.provision.recipe"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides the bytes of an image; its packages by their lock. Two equal recipes give one digest."""

    resolution: Resolution
    lock: Lock
    base: BaseImage
    own: Sequence[Entry]
    epoch: int

    @property
    def variables(self) -> dict[str, str]:
        return config.environment(self.resolution, self.lock, self.base.environment)

    @property
    def labels(self) -> dict[str, str]:
        return config.labels(self.resolution, self.lock, self.base.reference, self.base.digest, self.epoch)

    @property
    def annotations(self) -> dict[str, str]:
        return {**self.labels, RECIPE: self.digest}

    @property
    def digest(self) -> str:
        own = [(entry.path, entry.mode, hashlib.sha256(entry.content or b"").hexdigest()) for entry in self.own]
        known = {
            "base": self.base.diff_ids,
            "epoch": self.epoch,
            "labels": self.labels,
            "own": own,
            "variables": self.variables,
        }
        return hashlib.sha256(oci.canonical(known)).hexdigest()


def find(resolution: Resolution, lock: Lock, base: BaseImage, *, layout: Path, inside: Path, epoch: int = config.EPOCH) -> Image | None:
    """The image that already lies in `layout`, if building it now would give the same. No layer is read for it."""
    own = contents.own_entries(inside)
    return _find(Recipe(resolution=resolution, lock=lock, base=base, own=own, epoch=epoch), layout)


def build(
    resolution: Resolution,
    lock: Lock,
    prefix: Prefix,
    base: BaseImage,
    *,
    layout: Path,
    inside: Path,
    link: Callable[[Path], None],
    progress: Progress,
    epoch: int = config.EPOCH,
) -> Image:
    """Make the image layout, or keep the one that is there if it is already true.

    link: fills an empty folder with the conda part of the lock; paths in its files name /opt/env.
    A build that fails or is killed leaves the layout that was there before, or none.
    """
    contents.check_prefix(prefix, lock.sha256)
    recipe = Recipe(resolution=resolution, lock=lock, base=base, own=contents.own_entries(inside), epoch=epoch)
    found = _find(recipe, layout)
    if found is not None:
        return found
    with _space_for(layout), oci.building(layout) as new:
        staging = new / "staging"
        staging.mkdir()
        link(staging)
        groups = contents.gather(staging, prefix, lock.by("pip"), resolution.python, recipe.own)
        written = _write(recipe, groups, new, progress)
        shutil.rmtree(staging)
    return _image(recipe, layout, written)


def _find(recipe: Recipe, layout: Path) -> Image | None:
    written = oci.read(layout)
    return _image(recipe, layout, written) if written and written.annotations.get(RECIPE) == recipe.digest else None


def _image(recipe: Recipe, layout: Path, written: oci.Written) -> Image:
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


def _write(recipe: Recipe, groups: Mapping[str, Sequence[Entry]], new: Path, progress: Progress) -> oci.Written:
    size = recipe.base.size + sum(entry.size for entries in groups.values() for entry in entries)
    _check_space(new, size)
    blobs = oci.blobs(new)
    with progress.meter("writing image layers", size) as meter:
        made: list[Layer] = layers.write_base(recipe.base.archive(), recipe.base.diff_ids, blobs, meter.advance)
        inspecting.check(recipe.base.reference, [oci.blob(new, layer.digest) for layer in made], recipe.resolution.glibc)
        made += [layers.write(group, entries, blobs, recipe.epoch, meter.advance) for group, entries in groups.items()]
    document = config.image_config(recipe.variables, recipe.labels, made, recipe.epoch)
    return oci.write(new, document, made, recipe.annotations, config.reference(recipe.resolution.spec.name, recipe.lock))


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise NoSpace(
            f"The image needs {size / 1e9:.1f} GB in {folder.parent}, where {free / 1e9:.1f} GB are free.",
            advice=_SPACE_ADVICE,
        )


_SPACE_ADVICE = "Free space there and run the same command again, or build without --image."


@contextmanager
def _space_for(layout: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"The disk of {layout.parent} is full.", advice=_SPACE_ADVICE) from error
        raise
