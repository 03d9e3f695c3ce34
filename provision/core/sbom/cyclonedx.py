"""An SBOM as CycloneDX 1.6."""

from __future__ import annotations

import json
from typing import Any

from provision.core.sbom import Sbom, SbomPackage, license_expression


def document_text(sbom: Sbom) -> str:
    packages = sbom.sorted_packages
    purls = {package.key: package.purl for package in packages}
    dependencies = [{"ref": sbom.reference, "dependsOn": sorted(purls.values())}]
    for package in packages:
        needed_purls = sorted(purls[key] for key in package.needs)
        dependencies.append({"ref": package.purl, "dependsOn": needed_purls})
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{sbom.uuid}",
        "version": 1,
        "metadata": _metadata(sbom),
        "components": [_component(package) for package in packages],
        "dependencies": dependencies,
    }
    if sbom.unread:
        document["compositions"] = [{"aggregate": "incomplete", "assemblies": [sbom.reference]}]
    return json.dumps(document, indent=2) + "\n"


def _metadata(sbom: Sbom) -> dict[str, Any]:
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


def _component(package: SbomPackage) -> dict[str, Any]:
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
