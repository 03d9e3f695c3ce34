"""SBOMs: what something is made of, by package URL (purl), hash and license, as CycloneDX 1.6; and
the licenses that installed packages name.

The document is plain JSON, written here; the tests check it against CycloneDX's schema
(docs/decisions/0051). Callers that know the packages (of a lock, of an image) pass them in. The same
SBOM gives the same bytes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from packaging.utils import canonicalize_name

from provision.core.dataclass import frozen
from provision.core.json_text import parse_json
from provision.core.types import Manager

PREDICATE_TYPE = "https://cyclonedx.org/bom"  # of a statement that is an SBOM
# Manager and canonical name -> license.
Licenses = Mapping[tuple[Manager, str], str]
# A longer one is the license's text, not its name.
NAME_LIMIT = 120


@frozen
class SbomPackage:
    """A package as an SBOM lists it."""

    key: str  # unique in the SBOM
    manager: str  # conda, pip, deb, apk
    name: str
    version: str
    purl: str
    md5: str = ""
    sha256: str = ""
    license: str = ""  # as the package itself names it
    url: str = ""  # where it can be downloaded
    needs: tuple[str, ...] = ()  # the keys of its dependencies, as far as they are known


@frozen
class Sbom:
    """An SBOM of an image. subject: the image, as one of CycloneDX's components. identity: the same
    for the same SBOM. epoch: when the image was made."""

    subject: Mapping[str, object]
    packages: Sequence[SbomPackage]
    identity: str
    properties: Mapping[str, str]
    epoch: int


def sbom_text(sbom: Sbom) -> str:
    """The document, as JSON."""
    import uuid

    packages = sorted(
        sbom.packages, key=lambda package: (package.manager, package.name, package.key)
    )
    purls = {package.key: package.purl for package in packages}
    reference = sbom.subject["bom-ref"]
    dependencies = [{"ref": reference, "dependsOn": sorted(purls.values())}]
    for package in packages:
        needed_purls = sorted(purls[key] for key in package.needs)
        dependencies.append({"ref": package.purl, "dependsOn": needed_purls})
    serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"provision:{sbom.identity}")
    document: dict[str, object] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": serial_number.urn,
        "version": 1,
        "metadata": _metadata(sbom),
        "components": [_component(package) for package in packages],
        "dependencies": dependencies,
        # The packages of the base are not listed.
        "compositions": [{"aggregate": "incomplete", "assemblies": [reference]}],
    }
    return json.dumps(document, indent=2) + "\n"


def _license(name: str) -> dict[str, object]:
    """As an SPDX expression if it is one, else by the name that the package gives it."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return {"expression": canonicalize_license_expression(name)}
    except InvalidLicenseExpression:
        return {"license": {"name": name}}


def _metadata(sbom: Sbom) -> dict[str, object]:
    time = datetime.datetime.fromtimestamp(sbom.epoch, datetime.timezone.utc)
    return {
        "tools": {"components": [{"type": "application", "name": "provision"}]},
        "component": sbom.subject,
        "properties": [{"name": name, "value": value} for name, value in sbom.properties.items()],
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _component(package: SbomPackage) -> dict[str, object]:
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    digests = (("MD5", package.md5), ("SHA-256", package.sha256))
    hashes = [{"alg": algorithm, "content": digest} for algorithm, digest in digests if digest]
    if hashes:
        component["hashes"] = hashes
    if package.license:
        component["licenses"] = [_license(package.license)]
    if package.url:
        component["externalReferences"] = [{"type": "distribution", "url": package.url}]
    return component


def read_licenses(files: Iterable[tuple[str, bytes]]) -> Licenses:
    """Licenses from the content of conda's records (conda-meta/*.json) and wheels' METADATA, each
    with its path."""
    licenses: dict[tuple[Manager, str], str] = {}
    for path, content in files:
        with suppress(ValueError):  # what is not JSON, or not UTF-8, names no license
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


def _read_metadata(content: bytes) -> tuple[str, str]:
    """Name and license: the expression if there is one (PEP 639), else the old field if it is a
    name and not a text, else the classifiers."""
    from packaging.metadata import parse_email  # 10 ms, needed only here

    fields, _ = parse_email(content)
    name = fields.get("name", "")
    for text in (fields.get("license_expression", ""), fields.get("license", "").strip()):
        is_name = text and text.upper() != "UNKNOWN" and "\n" not in text
        if is_name and len(text) <= NAME_LIMIT:
            return name, text
    names = [
        classifier.rpartition("::")[2].strip()
        for classifier in fields.get("classifiers", ())
        if classifier.startswith("License ::")
    ]
    return name, ", ".join(names)
