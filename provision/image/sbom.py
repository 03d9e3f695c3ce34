"""The bill of materials of an image: what its lock names and what its base brought, with the image's digest as the subject."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser

from provision.core import sbom
from provision.core.errors import IntegrityError, ToolMissing
from provision.core.sbom import Sbom, SbomPackage
from provision.core.types import Image
from provision.image import config, oci_layout, system_packages
from provision.image.conda_files import PREFIX
from provision.image.image_files import Within, within

_CONDA = rf"{PREFIX.lstrip('/')}/conda-meta/[^/]+\.json"
_WHEELS = rf"{PREFIX.lstrip('/')}/lib/python[^/]+/site-packages/[^/]+\.dist-info/METADATA"
_RUNTIME = re.compile(r".*/site-packages/provision_runtime-[^/]+\.dist-info/METADATA")
_WANTED = re.compile(f"{system_packages.FILES.pattern}|{_CONDA}|{_WHEELS}")


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What an image's layers say. own: conda's records and wheels' metadata in the environment, by path."""

    base: tuple[SbomPackage, ...]
    unread: tuple[str, ...]
    own: dict[str, bytes]
    epoch: int


def look(image: Image) -> Looked:
    """Read what an image says of its packages: one pass over its layers, of which only the headers and a few files are read.

    ToolMissing where its layout is gone, IntegrityError where it is another image's or damaged.
    """
    there = oci_layout.read(image.layout)
    if there is None:
        raise ToolMissing(
            f"The image layout {image.layout} is not there, or not whole.",
            advice="`provision image build` makes it.",
        )
    if there.manifest_digest != image.manifest_digest:
        raise IntegrityError(
            f"{image.layout} holds another image than the passport names.",
            advice="Run `provision image build` again.",
        )
    layers = [oci_layout.blob(image.layout, layer.digest) for layer in there.layers]
    found = within(layers, _WANTED, system_packages.RPM, system_packages.LIMIT)
    own = {
        path: content
        for path, content in found.files.items()
        if path.startswith(PREFIX.lstrip("/"))
    }
    base = Within(
        files={path: content for path, content in found.files.items() if path not in own},
        links=found.links,
        seen=found.seen,
    )
    return Looked(
        base=system_packages.base_packages(base),
        unread=system_packages.unread(base),
        own=own,
        epoch=_made(image),
    )


def _made(image: Image) -> int:
    document = json.loads(oci_layout.blob(image.layout, image.image_id).read_bytes())
    return config.epoch_of(document["created"])


def bill(image: Image, looked: Looked, locked: Sequence[SbomPackage]) -> Sbom:
    """locked: the packages of the image's lock. The same image gives the same bill."""
    from packageurl import PackageURL

    name = image.reference.rpartition(":")[0]
    digest = image.manifest_digest
    parts = (*locked, *_runtime_parts(looked.own), *looked.base)
    return Sbom(
        title=f"{name}@{digest}",
        name=name,
        version=digest,
        kind="container",
        reference=f"image:{name}@{digest}",
        comment=f"An image on {image.base} ({image.base_digest}); the sha256 of its conda-lock.yml is {image.lock_sha256}.",
        parts=parts,
        identity=json.dumps(
            [name, digest, [(part.purl, part.license) for part in parts], looked.unread]
        ),
        properties=(
            ("provision:lock", image.lock_sha256),
            ("provision:base", image.base),
            ("provision:base-id", image.base_digest),
        ),
        purl=PackageURL(
            "oci", None, name.rpartition("/")[2], digest, {"arch": "amd64"}
        ).to_string(),
        sha256=digest.removeprefix("sha256:"),
        epoch=looked.epoch,
        unread=looked.unread,
    )


def _runtime_parts(own: Mapping[str, bytes]) -> list[SbomPackage]:
    """The runtime package, which no lock names; images of earlier versions have none."""
    from packageurl import PackageURL

    parts = []
    for path, content in own.items():
        if not _RUNTIME.fullmatch(path):
            continue
        metadata = HeaderParser().parsestr(content.decode())
        name, version = metadata["Name"], metadata["Version"]
        parts.append(
            SbomPackage(
                key=f"runtime:{name}",
                manager="pip",
                name=name,
                version=version,
                # Of no package index: a generic purl is looked up nowhere.
                purl=PackageURL("generic", None, name, version).to_string(),
                license=metadata["License"],
            )
        )
    return parts


def documents(made: Sbom) -> list[tuple[str, bytes]]:
    """Both bills with their media types, as a registry keeps them beside the image."""
    return [
        (media_type, sbom.sbom_text(made, kind).encode())
        for kind, media_type in sbom.MEDIA_TYPES.items()
    ]
