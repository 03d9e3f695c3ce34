"""`provision image sbom`: the software bill of materials of an environment's image."""

from __future__ import annotations

from provision import image as images
from provision import lockfile as locks
from provision.core.documents import Passport
from provision.core.errors import StaleLock, ToolMissing
from provision.core.platforms import Platform, build_platform, image_folder
from provision.core.sbom import Sbom, read_licenses
from provision.core.types import Image
from provision.environment import passport as passports
from provision.workflow.context import Context
from provision.workflow.passport import passport_with_image, read_passport


def image_of_platform(
    context: Context, name: str, platform: Platform | None = None
) -> tuple[Passport, Image]:
    """An environment's passport, and its image for this machine's platform or another.

    Raises ToolMissing if there is no such image, StaleLock if it was made from another lock.
    """
    if platform is None or platform == build_platform():
        passport = passport_with_image(context, name)
        return passport, passports.to_image(passport)
    passport = read_passport(context.folders, name)
    image = images.built_image(context.folders.images / image_folder(name, platform), name)
    lock = locks.read_file(context.folders.envs / name / locks.FILE)
    advice = f"`provision image build {name} --platform {platform}` makes it."
    if image is None:
        raise ToolMissing(f"Environment `{name}` has no image for {platform}.", advice=advice)
    if image.lock_sha256 != lock.sha256:
        raise StaleLock(f"The image of {name} for {platform} is of another lock.", advice=advice)
    return passport, image


def image_sbom(context: Context, name: str, image: Image, pushed: Image | None = None) -> Sbom:
    """The SBOM of an environment's image. pushed: the image in its compressed form.

    Needs no engine and no prefix: licenses are read from the image.
    """
    lock = locks.read_file(context.folders.envs / name / locks.FILE)
    packages = images.read_packages(image)
    entries = locks.main_entries(lock, packages.platform)
    licenses = read_licenses(sorted(packages.records.items()))
    return images.image_sbom(pushed or image, packages, locks.sbom_parts(entries, licenses))
