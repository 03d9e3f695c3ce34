"""Bills of materials: what something is made of, by package address (purl), hash and license, as CycloneDX 1.6 and SPDX 2.3.

Both are plain JSON documents, made here as they are; the tests hold them against CycloneDX's schema and SPDX's own validator. Who knows
the packages (of a lock, of an image) gives them; the same bill is the same bytes.
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
    """One package. key: what tells it from all others of the bill. needs: the keys of those that it needs, as far as that is known."""

    key: str
    manager: str  # conda, pip, deb, apk
    name: str
    version: str
    purl: str
    md5: str = ""
    sha256: str = ""
    license: str = ""  # as the package itself says
    url: str = ""  # where anybody can have it
    filename: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sbom:
    """A bill and what it is of. unread: what may hold packages that are not in it, each in words."""

    title: str
    name: str
    version: str
    kind: Literal["platform", "container"]
    reference: str  # what CycloneDX knows the subject by
    comment: str
    parts: Sequence[SbomPackage]
    identity: str  # the same for the same bill
    properties: tuple[tuple[str, str], ...] = ()
    purl: str = ""
    sha256: str = ""
    epoch: int | None = None
    unread: tuple[str, ...] = ()

    @property
    def uuid(self) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"provision:{self.identity}")

    def time(self, default: int | None) -> str | None:
        seconds = self.epoch if self.epoch is not None else default
        if seconds is None:
            return None
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )

    @property
    def sorted_parts(self) -> list[SbomPackage]:
        return sorted(self.parts, key=lambda part: (part.manager, part.name, part.key))


def sbom_text(bill: Sbom, kind: SbomFormat) -> str:
    from provision.core.sbom import cyclonedx, spdx

    return cyclonedx.text(bill) if kind == "cyclonedx" else spdx.text(bill)


def license_expression(said: str) -> str | None:
    """A package's license as an SPDX expression, if it is one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return canonicalize_license_expression(said) if said else None
    except InvalidLicenseExpression:
        return None
