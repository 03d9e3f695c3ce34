"""`provision image sbom`: the software bill of materials of an environment's image."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.utils import canonicalize_name

from provision import image as images
from provision import lockfile as locks
from provision.core.sbom import Sbom, read_licenses
from provision.core.types import Image
from provision.environment import passport as passports
from provision.workflow.context import Context
from provision.workflow.passport import passport_with_image


def image_sbom(context: Context, name: str) -> Sbom:
    """The SBOM of the image that the passport names.

    Needs no engine and no prefix: licenses are read from the image.

    Raises ToolMissing if there is no image, StaleLock if the image was made from another lock.
    """
    image, lock = _image_and_lock(context, name)
    return _sbom(image, lock)


def image_documents(context: Context, name: str, pushed: Image) -> list[tuple[str, bytes]]:
    """The SBOMs to attach to an image in a registry, with their media types.

    pushed: the image in its compressed form.
    """
    image, lock = _image_and_lock(context, name)
    return images.sbom_documents(_sbom(image, lock, pushed))


def _image_and_lock(context: Context, name: str) -> tuple[Image, locks.LockFile]:
    image = passports.to_image(passport_with_image(context, name))
    return image, locks.read_file(context.folders.envs / name / locks.FILE)


def _sbom(image: Image, lock: locks.LockFile, pushed: Image | None = None) -> Sbom:
    packages = images.read_packages(image)
    entries = locks.main_entries(lock, locks.export_platform(lock, None))
    parts = locks.sbom_parts(entries, _licenses(entries, packages.records))
    return images.image_sbom(pushed or image, packages, parts)


def _licenses(
    entries: tuple[locks.LockEntry, ...], metadata_files: Mapping[str, bytes]
) -> dict[str, str]:
    """Licenses by URL, as the packages in the image state them."""
    by_package = read_licenses(sorted(metadata_files.items()))
    by_url = {}
    for entry in entries:
        license_text = by_package.get((entry.manager, canonicalize_name(entry.name)))
        if license_text is not None:
            by_url[entry.url] = license_text
    return by_url
