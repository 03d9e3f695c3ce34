"""An SBOM as SPDX 2.3."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from provision.core.sbom import Sbom, SbomPackage, license_expression

# SPDX demands a time of creation. A lock has none, and the same lock shall give the same document:
# without SOURCE_DATE_EPOCH it is the epoch itself.
NO_TIME = 0
# SPDX wants the text of every license that is not in its list; metadata holds only the name.
NO_TEXT = "The package names this license; its text is in the package."
NO_ASSERTION = "NOASSERTION"
ROOT_IDS = {"platform": "SPDXRef-environment", "container": "SPDXRef-image"}


def document_text(sbom: Sbom) -> str:
    packages = sbom.sorted_packages
    ids = {
        package.key: f"SPDXRef-{number}-{package.manager}-{_idstring(package.name)}"
        for number, package in enumerate(packages, start=1)
    }
    root_id = ROOT_IDS[sbom.kind]
    relationships = [_relationship("SPDXRef-DOCUMENT", "DESCRIBES", root_id)]
    for package in packages:
        relationships.append(_relationship(root_id, "CONTAINS", ids[package.key]))
    for package in packages:
        for key in package.needs:
            relationships.append(_relationship(ids[package.key], "DEPENDS_ON", ids[key]))
    document: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": sbom.title,
        "documentNamespace": f"urn:uuid:{sbom.uuid}",
        "creationInfo": {"created": sbom.time(NO_TIME), "creators": ["Tool: provision"]},
        "packages": [
            _root_package(sbom, root_id),
            *(_package(package, ids[package.key]) for package in packages),
        ],
        "relationships": relationships,
    }
    licenses = sorted(_unlisted_licenses(packages))
    if licenses:
        document["hasExtractedLicensingInfos"] = [
            {"licenseId": name, "name": name, "extractedText": NO_TEXT} for name in licenses
        ]
    return json.dumps(document, indent=2) + "\n"


def _unlisted_licenses(packages: Iterable[SbomPackage]) -> set[str]:
    """Licenses that packages name themselves: LicenseRef-NVIDIA-Proprietary."""
    licenses: set[str] = set()
    for package in packages:
        expression = license_expression(package.license) or ""
        licenses.update(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression))
    return licenses


def _idstring(name: str) -> str:
    """Letters, numbers, dots and hyphens: all that an SPDX identifier may hold."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name)


def _relationship(element: str, kind: str, related: str) -> dict[str, str]:
    return {
        "spdxElementId": element,
        "relationshipType": kind,
        "relatedSpdxElement": related,
    }


def _root_package(sbom: Sbom, identifier: str) -> dict[str, Any]:
    comments = [sbom.comment, *(f"Not read: {description}." for description in sbom.unread)]
    package: dict[str, Any] = {
        "SPDXID": identifier,
        "name": sbom.name,
        "versionInfo": sbom.version,
        "comment": " ".join(comments),
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseConcluded": NO_ASSERTION,
        "licenseDeclared": NO_ASSERTION,
        "copyrightText": NO_ASSERTION,
    }
    if sbom.kind == "container":
        package["primaryPackagePurpose"] = "CONTAINER"
    if sbom.sha256:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": sbom.sha256}]
    if sbom.purl:
        package["externalRefs"] = [_purl_reference(sbom.purl)]
    return package


def _purl_reference(purl: str) -> dict[str, str]:
    return {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": purl,
    }


def _package(package: SbomPackage, identifier: str) -> dict[str, Any]:
    expression = license_expression(package.license)
    checksums = []
    if package.md5:
        checksums.append({"algorithm": "MD5", "checksumValue": package.md5})
    if package.sha256:
        checksums.append({"algorithm": "SHA256", "checksumValue": package.sha256})
    entry: dict[str, Any] = {
        "SPDXID": identifier,
        "name": package.name,
        "versionInfo": package.version,
    }
    if package.filename:
        entry["packageFileName"] = package.filename
    entry["downloadLocation"] = package.url or NO_ASSERTION
    entry["filesAnalyzed"] = False
    if checksums:
        entry["checksums"] = checksums
    entry["licenseConcluded"] = NO_ASSERTION
    entry["licenseDeclared"] = expression or NO_ASSERTION
    entry["copyrightText"] = NO_ASSERTION
    entry["externalRefs"] = [_purl_reference(package.purl)]
    if package.license and not expression:
        entry["licenseComments"] = f"The package says: {package.license}"
    return entry
