"""The bill of materials of an environment's image."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.utils import canonicalize_name

from provision import image as images
from provision import lockfile as locks
from provision.commands.plan import Context
from provision.core.errors import StaleLock, ToolMissing
from provision.core.sbom import Sbom
from provision.core.sbom.licenses import read_licenses
from provision.core.types import Image
from provision.environment import passport
from provision.resolver import spec


def image_bill(context: Context, name: str) -> Sbom:
    """`provision image sbom`: of the image that the passport names. No engine is needed, and no prefix: licenses are read in the image.

    ToolMissing where there is no image, StaleLock where the lock is not the image's (any more).
    """
    return _bill(*_made(context, name))


def image_documents(context: Context, name: str, sent: Image) -> list[tuple[str, bytes]]:
    """The bills as they lie beside the image in a registry, with their media types. sent: the same image as it lies there."""
    image, lock = _made(context, name)
    return images.sbom_documents(_bill(image, lock, sent))


def _made(context: Context, name: str) -> tuple[Image, locks.LockFile]:
    folder = context.where.envs / spec.check_name(name)
    known = passport.read(folder)
    if not known or not known.get("image"):
        raise ToolMissing(
            "The environment has no image.", advice=f"`provision image build {name}` makes it."
        )
    image = passport.to_image(known)
    lock = locks.read_file(folder / locks.FILE)
    if lock.sha256 != image.lock_sha256:
        raise StaleLock(
            f"The image was made from another lock than {lock.path}.",
            advice=f"Run `provision image build {name}` first.",
        )
    return image, lock


def _bill(image: Image, lock: locks.LockFile, sent: Image | None = None) -> Sbom:
    """sent: its compressed form, if that is what the bill is of."""
    looked = images.read_packages(image)
    entries = locks.main_entries(lock, locks.export_platform(lock, None))
    return images.image_sbom(
        sent or image, looked, locks.sbom_parts(entries, _licenses(entries, looked.own))
    )


def _licenses(entries: tuple[locks.LockEntry, ...], own: Mapping[str, bytes]) -> dict[str, str]:
    """By address, as the packages in the image say."""
    said = read_licenses(sorted(own.items()))
    keys = {entry.url: (entry.manager, canonicalize_name(entry.name)) for entry in entries}
    return {url: said[key] for url, key in keys.items() if key in said}
