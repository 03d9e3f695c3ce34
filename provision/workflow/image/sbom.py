"""An environment's image, and its software bill of materials."""

from __future__ import annotations

import hashlib

from provision import lockfile as locks
from provision.core.errors import StaleLock, ToolMissing
from provision.core.platforms import Platform, build_platform, image_folder
from provision.core.sbom import Sbom, read_licenses
from provision.core.types import Image
from provision.image import sbom as sboms
from provision.image.build import built_image
from provision.resolver import spec as specs
from provision.workflow.context import Context, existing_environments


def environment_image(context: Context, name: str, platform: Platform | None = None) -> Image:
    """The image of an environment's lock, for this machine's platform or another.

    Raises ToolMissing if there is none, StaleLock if it was made from another lock than the present one.
    """
    platform = platform or build_platform()
    folder = context.folders.envs / specs.check_name(name)
    image = built_image(context.folders.images / image_folder(name, platform), name)
    option = "" if platform == build_platform() else f" --platform {platform}"
    advice = f"`provision image build {name}{option}` makes it."
    if image is None:
        if not folder.is_dir():
            advice = existing_environments(context.folders.envs, name)
        raise ToolMissing(f"Environment `{name}` has no image for {platform}.", advice=advice)
    path = folder / locks.FILE
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != image.lock_sha256:
        raise StaleLock(f"The image of {name} is of another lock than {path}.", advice=advice)
    return image


def image_sbom(context: Context, name: str, image: Image, pushed: Image | None = None) -> Sbom:
    """The SBOM of an environment's image. pushed: the image in its compressed form.

    Needs no engine and no prefix: licenses are read from the image.
    """
    lock = locks.read_file(context.folders.envs / name / locks.FILE)
    packages = sboms.read_packages(image)
    entries = locks.main_entries(lock, packages.platform)
    licenses = read_licenses(sorted(packages.records.items()))
    return sboms.image_sbom(pushed or image, packages, locks.sbom_parts(entries, licenses))
