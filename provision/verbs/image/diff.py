"""`provision image diff`: two images by their packages and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.image.base import is_on_disk
from provision.image.disk_base import read_layout
from provision.image.oci_layout import layer_files
from provision.image.package_sizes import PackageChange, compare, package_sizes
from provision.workflow.context import Context
from provision.workflow.image.sbom import environment_image


@frozen
class ImageDiff:
    """How an image differs from another. sizes: of all files, uncompressed."""

    size_before: int
    size_after: int
    changes: tuple[PackageChange, ...]


def diff_images(context: Context, before: str, after: str) -> ImageDiff:
    """Each is an environment with an image, or oci:DIR.

    Raises IntegrityError for an image that is incomplete or invalid, ToolMissing for a folder that
    is not there.
    """
    first, second = (package_sizes(_layers(context, name)) for name in (before, after))
    return ImageDiff(
        size_before=sum(first.values()),
        size_after=sum(second.values()),
        changes=compare(first, second),
    )


def _layers(context: Context, name: str) -> Sequence[Path]:
    if is_on_disk(name):
        return read_layout(name, platform=None)[1]
    if "/" in name:
        raise InvalidSpec(
            f"{name} is neither an environment nor a layout on this machine.",
            advice=f"Fetch an image of a registry first: skopeo copy docker://{name} oci:DIR",
        )
    return layer_files(environment_image(context, name))
