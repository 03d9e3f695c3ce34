"""A bill as SPDX 2.3."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from provision.core.sbom import Sbom, SbomPackage, license_expression

# SPDX demands a time of creation. A lock has none, and the same lock shall give the same document: without SOURCE_DATE_EPOCH it is
# the epoch itself, which says as much as it knows.
NO_TIME = 0
# SPDX wants the text of every license that is not in its list; metadata holds the name alone.
NO_TEXT = "The package names this license; its text is in the package."
ROOTS = {"platform": "SPDXRef-environment", "container": "SPDXRef-image"}


def text(bill: Sbom) -> str:
    parts = bill.sorted_parts
    ids = {
        part.key: f"SPDXRef-{number}-{part.manager}-{_idstring(part.name)}"
        for number, part in enumerate(parts, start=1)
    }
    root = ROOTS[bill.kind]
    relationships = [_relationship("SPDXRef-DOCUMENT", "DESCRIBES", root)]
    relationships += [_relationship(root, "CONTAINS", ids[part.key]) for part in parts]
    relationships += [
        _relationship(ids[part.key], "DEPENDS_ON", ids[key]) for part in parts for key in part.needs
    ]
    document: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": bill.title,
        "documentNamespace": f"urn:uuid:{bill.uuid}",
        "creationInfo": {"created": bill.time(NO_TIME), "creators": ["Tool: provision"]},
        "packages": [_root_package(bill, root), *(_package(part, ids[part.key]) for part in parts)],
        "relationships": relationships,
    }
    if own := sorted(_own_licenses(parts)):
        document["hasExtractedLicensingInfos"] = [
            {"licenseId": name, "name": name, "extractedText": NO_TEXT} for name in own
        ]
    return json.dumps(document, indent=2) + "\n"


def _own_licenses(parts: Iterable[SbomPackage]) -> set[str]:
    """Licenses that packages name themselves: LicenseRef-NVIDIA-Proprietary."""
    return {
        name
        for part in parts
        for name in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", license_expression(part.license) or "")
    }


def _idstring(name: str) -> str:
    """Letters, numbers, dots and hyphens: all that an SPDX identifier may hold."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name)


def _relationship(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _root_package(bill: Sbom, identifier: str) -> dict[str, Any]:
    package: dict[str, Any] = {
        "SPDXID": identifier,
        "name": bill.name,
        "versionInfo": bill.version,
        "comment": " ".join([bill.comment, *(f"Not read: {what}." for what in bill.unread)]),
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    if bill.kind == "container":
        package["primaryPackagePurpose"] = "CONTAINER"
    if bill.sha256:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": bill.sha256}]
    if bill.purl:
        package["externalRefs"] = [_address(bill.purl)]
    return package


def _address(purl: str) -> dict[str, str]:
    return {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": purl,
    }


def _package(part: SbomPackage, identifier: str) -> dict[str, Any]:
    found = license_expression(part.license)
    checksums = [
        {"algorithm": name, "checksumValue": value}
        for name, value in (("MD5", part.md5), ("SHA256", part.sha256))
        if value
    ]
    package: dict[str, Any] = {
        "SPDXID": identifier,
        "name": part.name,
        "versionInfo": part.version,
        **({"packageFileName": part.filename} if part.filename else {}),
        "downloadLocation": part.url or "NOASSERTION",
        "filesAnalyzed": False,
        **({"checksums": checksums} if checksums else {}),
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": found or "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [_address(part.purl)],
    }
    if part.license and not found:
        package["licenseComments"] = f"The package says: {part.license}"
    return package
