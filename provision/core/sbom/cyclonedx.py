"""A bill as CycloneDX 1.6."""

from __future__ import annotations

import json
from typing import Any

from provision.core.sbom import Sbom, SbomPackage, license_expression


def text(bill: Sbom) -> str:
    parts = bill.sorted_parts
    references = {part.key: part.purl for part in parts}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{bill.uuid}",
        "version": 1,
        "metadata": _metadata(bill),
        "components": [_component(part) for part in parts],
        "dependencies": [
            {"ref": bill.reference, "dependsOn": sorted(references.values())},
            *(
                {"ref": part.purl, "dependsOn": sorted(references[key] for key in part.needs)}
                for part in parts
            ),
        ],
    }
    if bill.unread:
        document["compositions"] = [{"aggregate": "incomplete", "assemblies": [bill.reference]}]
    return json.dumps(document, indent=2) + "\n"


def _metadata(bill: Sbom) -> dict[str, Any]:
    subject: dict[str, Any] = {
        "type": bill.kind,
        "bom-ref": bill.reference,
        "name": bill.name,
        "version": bill.version,
    }
    if bill.sha256:
        subject["hashes"] = [{"alg": "SHA-256", "content": bill.sha256}]
    if bill.purl:
        subject["purl"] = bill.purl
    said = [*bill.properties, *(("provision:unread", what) for what in bill.unread)]
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "provision"}]},
        "component": subject,
        "properties": [{"name": name, "value": value} for name, value in said],
    }
    if time := bill.time(None):
        metadata["timestamp"] = time
    return metadata


def _component(part: SbomPackage) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
    }
    hashes = [
        {"alg": name, "content": value}
        for name, value in (("MD5", part.md5), ("SHA-256", part.sha256))
        if value
    ]
    if hashes:
        component["hashes"] = hashes
    if found := license_expression(part.license):
        component["licenses"] = [{"expression": found}]
    elif part.license:
        component["licenses"] = [{"license": {"name": part.license}}]
    if part.url:
        component["externalReferences"] = [{"type": "distribution", "url": part.url}]
    return component
