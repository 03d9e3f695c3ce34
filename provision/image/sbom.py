"""The SBOM of an image: the packages that its lock names, and its runtime package, with the image's
digest as the subject.

Package records are read from the layers' archives, without unpacking or running anything. The
packages of the base are not listed, and the SBOM says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from provision.core.container import PREFIX
from provision.core.dataclass import frozen
from provision.core.platforms import ARCHITECTURES, PLATFORM_OF, Platform
from provision.core.sbom import Sbom, SbomPackage
from provision.core.types import Image
from provision.image import config, oci_layout
from provision.image.contents import read_files

# The environment's records.
_PREFIX = PREFIX.lstrip("/")
_CONDA_RECORD = rf"{_PREFIX}/conda-meta/[^/]+\.json"
_WHEEL_METADATA = rf"{_PREFIX}/lib/python[^/]+/site-packages/[^/]+\.dist-info/METADATA"
_RUNTIME_METADATA = re.compile(r".*/site-packages/provision_runtime-([^/]+)\.dist-info/METADATA")
RECORDS = re.compile(f"{_CONDA_RECORD}|{_WHEEL_METADATA}")


@frozen
class ImagePackages:
    """The package records in the layers of an image.

    records: conda's records and wheels' METADATA in the environment, by path. epoch: when the image
    was made. platform: what it is for.
    """

    records: dict[str, bytes]
    epoch: int
    platform: Platform


def read_packages(image: Image) -> ImagePackages:
    """Read the package records of an image, in one pass over the headers of its layers.

    IntegrityError if its layout is gone, another image's or corrupt.
    """
    image_config = oci_layout.read_config(image.layout, image.image_id)
    return ImagePackages(
        records=read_files(oci_layout.layer_files(image), RECORDS).files,
        epoch=config.epoch_of(image_config["created"]),
        platform=PLATFORM_OF[image_config["architecture"]],
    )


def image_sbom(image: Image, packages: ImagePackages, locked: Sequence[SbomPackage]) -> Sbom:
    """locked: the packages of the image's lock. The same image gives the same SBOM."""
    from packageurl import PackageURL

    name = image.reference.rpartition(":")[0]
    digest = image.manifest_digest
    parts = (*locked, *_runtime_packages(packages.records))
    licenses = [(part.purl, part.license) for part in parts]
    architecture = {"arch": ARCHITECTURES[packages.platform]}
    purl = PackageURL("oci", None, name.rpartition("/")[2], digest, architecture)
    subject = {
        "type": "container",
        "bom-ref": f"image:{name}@{digest}",
        "name": name,
        "version": digest,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
        "purl": purl.to_string(),
    }
    return Sbom(
        subject=subject,
        packages=parts,
        identity=json.dumps([name, digest, licenses]),
        properties={
            "provision:lock": image.lock_sha256,
            "provision:base": image.base,
            "provision:base-id": image.base_digest,
        },
        epoch=packages.epoch,
    )


def _runtime_packages(records: Iterable[str]) -> list[SbomPackage]:
    """The runtime package, which no lock names; images of earlier versions have none."""
    from packageurl import PackageURL

    name = "provision-runtime"
    return [
        SbomPackage(
            key=f"runtime:{name}",
            manager="pip",
            name=name,
            version=match[1],
            # It is on no package index, so its purl is a generic one, which is not looked up.
            purl=PackageURL("generic", None, name, match[1]).to_string(),
            license="Apache-2.0",
        )
        for match in filter(None, map(_RUNTIME_METADATA.fullmatch, records))
    ]
