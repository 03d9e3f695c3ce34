"""`provision image sbom`: the software bill of materials of an environment's image."""

from __future__ import annotations

from provision import image as images
from provision import lockfile as locks
from provision.core.sbom import Sbom, read_licenses
from provision.core.types import Image
from provision.environment import passport as passports
from provision.workflow.context import Context
from provision.workflow.passport import passport_with_image


def image_sbom(context: Context, name: str, pushed: Image | None = None) -> Sbom:
    """The SBOM of the image that the passport names. pushed: the image in its compressed form.

    Needs no engine and no prefix: licenses are read from the image.

    Raises IntegrityError if there is no image, StaleLock if the image was made from another lock.
    """
    image = passports.to_image(passport_with_image(context, name))
    lock = locks.read_file(context.folders.envs / name / locks.FILE)
    packages = images.read_packages(image)
    entries = locks.main_entries(lock, locks.export_platform(lock, None))
    licenses = read_licenses(sorted(packages.records.items()))
    return images.image_sbom(pushed or image, packages, locks.sbom_parts(entries, licenses))
