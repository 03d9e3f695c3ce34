"""SBOMs: what something is made of, by package URL (purl), hash and license, as CycloneDX 1.6 and
SPDX 2.3.

Both are plain JSON documents, written here; the tests check them against CycloneDX's schema and
with SPDX's own validator. Callers that know the packages (of a lock, of an image) pass them in. The
same SBOM is the same bytes.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SbomFormat = Literal["cyclonedx", "spdx"]
# What registries and other tools call the two.
MEDIA_TYPES: dict[SbomFormat, str] = {
    "cyclonedx": "application/vnd.cyclonedx+json",
    "spdx": "application/spdx+json",
}


@dataclass(frozen=True, kw_only=True)
class SbomPackage:
    """One package."""

    key: str  # unique in the SBOM
    manager: str  # conda, pip, deb, apk
    name: str
    version: str
    purl: str
    md5: str = ""
    sha256: str = ""
    license: str = ""  # as the package itself names it
    url: str = ""  # where anybody can download it
    filename: str = ""
    needs: tuple[str, ...] = ()  # the keys of its dependencies, as far as they are known


@dataclass(frozen=True, kw_only=True)
class Sbom:
    """An SBOM and its subject."""

    title: str
    name: str
    version: str
    kind: Literal["platform", "container"]
    reference: str  # by which CycloneDX refers to the subject
    comment: str
    packages: Sequence[SbomPackage]
    identity: str  # the same for the same SBOM
    properties: tuple[tuple[str, str], ...] = ()
    purl: str = ""
    sha256: str = ""
    epoch: int | None = None
    unread: tuple[str, ...] = ()  # what may hold more packages, each in words

    @property
    def uuid(self) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"provision:{self.identity}")

    def time(self, default: int | None) -> str | None:
        """The time of creation: the epoch's, else that of the default (seconds)."""
        seconds = self.epoch if self.epoch is not None else default
        if seconds is None:
            return None
        time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def sorted_packages(self) -> list[SbomPackage]:
        return sorted(
            self.packages, key=lambda package: (package.manager, package.name, package.key)
        )


def sbom_text(sbom: Sbom, sbom_format: SbomFormat) -> str:
    from provision.core.sbom import cyclonedx, spdx

    if sbom_format == "cyclonedx":
        return cyclonedx.document_text(sbom)
    return spdx.document_text(sbom)


def license_expression(license_name: str) -> str | None:
    """A package's license as an SPDX expression, if it is one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    if not license_name:
        return None
    try:
        return canonicalize_license_expression(license_name)
    except InvalidLicenseExpression:
        return None
