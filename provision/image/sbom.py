"""The SBOM of an image: the packages that its lock names, its runtime package, and the packages of
its base, with the image's digest as the subject.

Package records are read from the layers' archives, without unpacking or running anything. A base's
packages are those that dpkg recorded (also in distroless images). Other package managers' databases
are not read, and the SBOM says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from provision.core.container import PREFIX
from provision.core.dataclass import frozen
from provision.core.platforms import ARCHITECTURES, PLATFORM_OF, Platform
from provision.core.sbom import Sbom, SbomPackage
from provision.core.types import Image
from provision.image import config, oci_layout
from provision.image.contents import ImageContents, read_files

# The base's own records.
OS_RELEASE = ("usr/lib/os-release", "etc/os-release")  # the second replaces values of the first
_DPKG = r"var/lib/dpkg/status|var/lib/dpkg/status\.d/[^/]+(?<!\.md5sums)"
SYSTEM_FILES = re.compile(f"{_DPKG}|{'|'.join(OS_RELEASE)}")

# The environment's records.
_PREFIX = PREFIX.lstrip("/")
_CONDA_RECORD = rf"{_PREFIX}/conda-meta/[^/]+\.json"
_WHEEL_METADATA = rf"{_PREFIX}/lib/python[^/]+/site-packages/[^/]+\.dist-info/METADATA"
_RUNTIME_METADATA = re.compile(r".*/site-packages/provision_runtime-([^/]+)\.dist-info/METADATA")
RECORDS = re.compile(f"{SYSTEM_FILES.pattern}|{_CONDA_RECORD}|{_WHEEL_METADATA}")


@frozen
class ImagePackages:
    """The package records in the layers of an image.

    base: those of the base. unread: descriptions of what may hold packages that are not listed.
    records: conda's records and wheels' METADATA in the environment, by path. epoch: when the image
    was made. platform: what it is for.
    """

    base: tuple[SbomPackage, ...]
    unread: tuple[str, ...]
    records: dict[str, bytes]
    epoch: int
    platform: Platform


def read_packages(image: Image) -> ImagePackages:
    """Read the package records of an image, in one pass over the headers of its layers.

    IntegrityError if its layout is gone, another image's or corrupt.
    """
    contents = read_files(oci_layout.layer_files(image), RECORDS)
    records = {
        path: content for path, content in contents.files.items() if path.startswith(_PREFIX)
    }
    for path in records:
        del contents.files[path]
    image_config = oci_layout.read_config(image.layout, image.image_id)
    return ImagePackages(
        base=base_packages(contents),
        unread=unread_databases(contents),
        records=records,
        epoch=config.epoch_of(image_config["created"]),
        platform=PLATFORM_OF[image_config["architecture"]],
    )


def image_sbom(image: Image, packages: ImagePackages, locked: Sequence[SbomPackage]) -> Sbom:
    """locked: the packages of the image's lock. The same image gives the same SBOM."""
    from packageurl import PackageURL

    name = image.reference.rpartition(":")[0]
    digest = image.manifest_digest
    parts = (*locked, *_runtime_packages(packages.records), *packages.base)
    licenses = [(part.purl, part.license) for part in parts]
    architecture = {"arch": ARCHITECTURES[packages.platform]}
    purl = PackageURL("oci", None, name.rpartition("/")[2], digest, architecture)
    return Sbom(
        name=name,
        version=digest,
        reference=f"image:{name}@{digest}",
        packages=parts,
        identity=json.dumps([name, digest, licenses, packages.unread]),
        properties=(
            ("provision:lock", image.lock_sha256),
            ("provision:base", image.base),
            ("provision:base-id", image.base_digest),
        ),
        purl=purl.to_string(),
        sha256=digest.removeprefix("sha256:"),
        epoch=packages.epoch,
        unread=packages.unread,
    )


def _runtime_packages(records: Iterable[str]) -> list[SbomPackage]:
    """The runtime package, which no lock names; images of earlier versions have none."""
    from packageurl import PackageURL

    packages = []
    for path in records:
        match = _RUNTIME_METADATA.fullmatch(path)
        if match is not None:
            name, version = "provision-runtime", match[1]
            # It is on no package index, so its purl is a generic one, which is not looked up.
            purl = PackageURL("generic", None, name, version).to_string()
            packages.append(
                SbomPackage(
                    key=f"runtime:{name}",
                    manager="pip",
                    name=name,
                    version=version,
                    purl=purl,
                    license="Apache-2.0",
                )
            )
    return packages


# Packages of a base


def base_packages(contents: ImageContents) -> tuple[SbomPackage, ...]:
    """The packages that dpkg recorded as installed, each package once."""
    from packageurl import PackageURL

    system = {}
    for path in OS_RELEASE:
        for line in contents.files.get(path, b"").decode(errors="replace").splitlines():
            key, separator, value = line.partition("=")
            if separator:
                system[key.strip()] = value.strip().strip("\"'")
    namespace = system.get("ID") or "debian"
    version_id = system.get("VERSION_ID")
    distribution = f"{namespace}-{version_id}" if version_id else namespace
    packages = {}
    for path in sorted(contents.files.keys() - set(OS_RELEASE)):
        for fields in _stanzas(contents.files[path]):
            name, version = fields.get("Package"), fields.get("Version")
            status = fields.get("Status", "install ok installed").split()
            if not name or not version or status[-1:] != ["installed"]:
                continue
            qualifiers = {"distro": distribution}
            if fields.get("Architecture"):
                qualifiers["arch"] = fields["Architecture"]
            purl = PackageURL("deb", namespace, name, version, qualifiers).to_string()
            packages[purl] = SbomPackage(
                key=purl, manager="deb", name=name, version=version, purl=purl
            )
    return tuple(packages.values())


def unread_databases(contents: ImageContents) -> tuple[str, ...]:
    """Descriptions of what may hold packages of a base that are not in the SBOM."""
    if contents.files.keys() - set(OS_RELEASE):
        return ()
    return ("the base has no package database of dpkg, so its packages are not listed",)


def _stanzas(content: bytes) -> Iterator[dict[str, str]]:
    """Paragraphs of `key: value`, with the first line of each value, which is all we need."""
    for paragraph in re.split(r"\n\s*\n", content.decode(errors="replace")):
        fields = {}
        for line in paragraph.splitlines():
            if line and not line[0].isspace():
                key, _, value = line.partition(":")
                fields[key] = value.strip()
        if fields:
            yield fields
