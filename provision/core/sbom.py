"""SBOMs: what something is made of, by package URL (purl), hash and license, as CycloneDX 1.6 and
SPDX 2.3; and the licenses that installed packages name.

The documents are plain JSON, written here; the tests check them against CycloneDX's schema and with
SPDX's own validator. Callers that know the packages (of a lock, of an image) pass them in. The
same SBOM gives the same bytes.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name

from provision.core.json_text import parse_json
from provision.core.types import Manager

SbomFormat = Literal["cyclonedx", "spdx"]
# What registries and other tools call the two.
MEDIA_TYPES: dict[SbomFormat, str] = {
    "cyclonedx": "application/vnd.cyclonedx+json",
    "spdx": "application/spdx+json",
}
# SPDX demands a time of creation. A lock has none, and the same lock shall give the same document:
# without SOURCE_DATE_EPOCH it is the epoch itself.
NO_TIME = 0
# SPDX wants the text of every license that is not in its list; metadata holds only the name.
NO_TEXT = "The package names this license; its text is in the package."
NO_ASSERTION = "NOASSERTION"
ROOT_IDS = {"platform": "SPDXRef-environment", "container": "SPDXRef-image"}
# Manager and canonical name -> license.
Licenses = Mapping[tuple[Manager, str], str]
# A longer one is the license's text, not its name.
NAME_LIMIT = 120


@dataclass(frozen=True, kw_only=True)
class SbomPackage:
    """One package of an SBOM."""

    key: str  # unique in the SBOM
    manager: str  # conda, pip, deb, apk
    name: str
    version: str
    purl: str
    md5: str = ""
    sha256: str = ""
    license: str = ""  # as the package itself names it
    url: str = ""  # where it can be downloaded
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
    unread: tuple[str, ...] = ()  # what may hold more packages, each described

    @property
    def uuid(self) -> str:
        import uuid

        namespace = uuid.NAMESPACE_URL
        return str(uuid.uuid5(namespace, f"provision:{self.identity}"))

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
    """The document in one of the two formats."""
    document = _cyclonedx_document(sbom) if sbom_format == "cyclonedx" else _spdx_document(sbom)
    return json.dumps(document, indent=2) + "\n"


def license_expression(license_name: str) -> str | None:
    """A package's license as an SPDX expression, if it is one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    if not license_name:
        return None
    try:
        return canonicalize_license_expression(license_name)
    except InvalidLicenseExpression:
        return None


def _cyclonedx_document(sbom: Sbom) -> dict[str, Any]:
    packages = sbom.sorted_packages
    purls = {package.key: package.purl for package in packages}
    dependencies = [{"ref": sbom.reference, "dependsOn": sorted(purls.values())}]
    for package in packages:
        needed_purls = sorted(purls[key] for key in package.needs)
        dependencies.append({"ref": package.purl, "dependsOn": needed_purls})
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{sbom.uuid}",
        "version": 1,
        "metadata": _cyclonedx_subject(sbom),
        "components": [_cyclonedx_component(package) for package in packages],
        "dependencies": dependencies,
    }
    if sbom.unread:
        document["compositions"] = [{"aggregate": "incomplete", "assemblies": [sbom.reference]}]
    return document


def _cyclonedx_subject(sbom: Sbom) -> dict[str, Any]:
    subject: dict[str, Any] = {
        "type": sbom.kind,
        "bom-ref": sbom.reference,
        "name": sbom.name,
        "version": sbom.version,
    }
    if sbom.sha256:
        subject["hashes"] = [{"alg": "SHA-256", "content": sbom.sha256}]
    if sbom.purl:
        subject["purl"] = sbom.purl
    properties = [{"name": name, "value": value} for name, value in sbom.properties]
    for description in sbom.unread:
        properties.append({"name": "provision:unread", "value": description})
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "provision"}]},
        "component": subject,
        "properties": properties,
    }
    time = sbom.time(None)
    if time:
        metadata["timestamp"] = time
    return metadata


def _cyclonedx_component(package: SbomPackage) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    hashes = []
    if package.md5:
        hashes.append({"alg": "MD5", "content": package.md5})
    if package.sha256:
        hashes.append({"alg": "SHA-256", "content": package.sha256})
    if hashes:
        component["hashes"] = hashes
    expression = license_expression(package.license)
    if expression:
        component["licenses"] = [{"expression": expression}]
    elif package.license:
        component["licenses"] = [{"license": {"name": package.license}}]
    if package.url:
        component["externalReferences"] = [{"type": "distribution", "url": package.url}]
    return component


def _spdx_document(sbom: Sbom) -> dict[str, Any]:
    packages = sbom.sorted_packages
    ids = {}
    for number, package in enumerate(packages, start=1):
        # An SPDX identifier may hold only letters, numbers, dots and hyphens.
        name = re.sub(r"[^A-Za-z0-9.-]", "-", package.name)
        ids[package.key] = f"SPDXRef-{number}-{package.manager}-{name}"
    root_id = ROOT_IDS[sbom.kind]
    relationships = [_spdx_relationship("SPDXRef-DOCUMENT", "DESCRIBES", root_id)]
    for package in packages:
        relationships.append(_spdx_relationship(root_id, "CONTAINS", ids[package.key]))
    for package in packages:
        for key in package.needs:
            relationships.append(_spdx_relationship(ids[package.key], "DEPENDS_ON", ids[key]))
    document: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": sbom.title,
        "documentNamespace": f"urn:uuid:{sbom.uuid}",
        "creationInfo": {"created": sbom.time(NO_TIME), "creators": ["Tool: provision"]},
        "packages": [
            _spdx_root(sbom, root_id),
            *(_spdx_package(package, ids[package.key]) for package in packages),
        ],
        "relationships": relationships,
    }
    licenses = sorted(_unlisted_licenses(packages))
    if licenses:
        document["hasExtractedLicensingInfos"] = [
            {"licenseId": name, "name": name, "extractedText": NO_TEXT} for name in licenses
        ]
    return document


def _unlisted_licenses(packages: Iterable[SbomPackage]) -> set[str]:
    """Licenses that packages name themselves: LicenseRef-NVIDIA-Proprietary."""
    licenses: set[str] = set()
    for package in packages:
        expression = license_expression(package.license) or ""
        licenses.update(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression))
    return licenses


def _spdx_relationship(element: str, kind: str, related: str) -> dict[str, str]:
    return {
        "spdxElementId": element,
        "relationshipType": kind,
        "relatedSpdxElement": related,
    }


def _spdx_root(sbom: Sbom, identifier: str) -> dict[str, Any]:
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


def _spdx_package(package: SbomPackage, identifier: str) -> dict[str, Any]:
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


def prefix_licenses(prefix: Path) -> Licenses:
    """The licenses of a prefix's packages; packages that name none are left out."""
    return read_licenses(_metadata_files(prefix))


def read_licenses(files: Iterable[tuple[str, bytes]]) -> Licenses:
    """Licenses from the content of conda's records (conda-meta/*.json) and wheels' METADATA, each
    with its path."""
    licenses: dict[tuple[Manager, str], str] = {}
    for path, content in files:
        with contextlib.suppress(ValueError):  # what is not JSON, or not UTF-8, names no license
            if path.endswith(".json"):
                record = parse_json(content)
                if isinstance(record, dict) and record.get("license") and record.get("name"):
                    name = canonicalize_name(str(record["name"]))
                    licenses["conda", name] = str(record["license"])
            else:
                wheel, license_name = _read_metadata(content)
                if wheel and license_name:
                    licenses["pip", canonicalize_name(wheel)] = license_name
    return licenses


def _metadata_files(prefix: Path) -> Iterator[tuple[str, bytes]]:
    for pattern in ("conda-meta/*.json", "lib/python*/site-packages/*.dist-info/METADATA"):
        for path in sorted(prefix.glob(pattern)):
            with contextlib.suppress(OSError):
                yield str(path), path.read_bytes()


def _read_metadata(content: bytes) -> tuple[str, str]:
    """Name and license: the expression if there is one (PEP 639), else the old field if it is a
    name and not a text, else the classifiers."""
    from email.parser import HeaderParser  # 10 ms, needed only here

    metadata = HeaderParser().parsestr(content.decode())
    for field in ("License-Expression", "License"):
        lines = metadata.get_all(field) or [""]
        text = str(lines[0]).strip()
        is_name = text and text.upper() != "UNKNOWN" and "\n" not in text
        if is_name and len(text) <= NAME_LIMIT:
            return str(metadata["Name"] or ""), text
    names = []
    for classifier in metadata.get_all("Classifier") or []:
        if str(classifier).startswith("License ::"):
            names.append(str(classifier).rpartition("::")[2].strip())
    return str(metadata["Name"] or ""), ", ".join(names)
