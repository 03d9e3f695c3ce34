"""Bills of materials: what is in an environment, by package address (purl), hash and license, as CycloneDX 1.6 and SPDX 2.3.

Both are plain JSON documents, made here as they are; the tests hold them against CycloneDX's schema and SPDX's own validator.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.pipeline.lock.contents import Entry
from provision.wheels import normal

# SPDX demands a time of creation. A lock has none, and the same lock shall give the same document: without SOURCE_DATE_EPOCH it is
# the epoch itself, which says as much as it knows.
NO_TIME = 0


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a bill of materials is of."""

    name: str
    platform: str
    lock_sha256: str
    entries: tuple[Entry, ...]
    licenses: Mapping[str, str]  # by address; what the package itself says
    epoch: int | None

    @property
    def uuid(self) -> uuid.UUID:
        """The same for the same lock, platform and licenses."""
        said = json.dumps([self.name, self.platform, self.lock_sha256, sorted(self.licenses.items()), self.epoch])
        return uuid.uuid5(uuid.NAMESPACE_URL, f"provision:{said}")

    def time(self, default: int | None) -> str | None:
        seconds = self.epoch if self.epoch is not None else default
        if seconds is None:
            return None
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def purl(entry: Entry) -> str:
    """The package's address by the purl specification's types `conda` and `pypi`."""
    from packageurl import PackageURL

    if entry.manager == "pip":
        return PackageURL("pypi", None, entry.name, entry.version).to_string()
    place = entry.url.rsplit("/", 2)
    channel, subdir = (place[0].rsplit("/", 1)[-1], place[1]) if len(place) == 3 else ("", "")
    kind = "conda" if entry.filename.endswith(".conda") else "tar.bz2"
    qualifiers = {"build": entry.build_string, "channel": channel, "subdir": subdir, "type": kind}
    return PackageURL("conda", None, entry.name, entry.version, {key: value for key, value in qualifiers.items() if value}).to_string()


def edges(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Address -> addresses of what it needs. A wheel's need may be met by conda; what is the machine's is in no bill."""
    conda = {normal(entry.name): entry.url for entry in entries if entry.manager == "conda"}
    wheels = {normal(entry.name): entry.url for entry in entries if entry.manager == "pip"}
    found = {}
    for entry in entries:
        there = {**conda, **wheels} if entry.manager == "pip" else conda
        found[entry.url] = sorted({there[normal(name)] for name, _ in entry.depends if normal(name) in there})
    return found


def _expression(said: str | None) -> str | None:
    """A package's license as an SPDX expression, if it is one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return canonicalize_license_expression(said) if said else None
    except InvalidLicenseExpression:
        return None


def _sorted(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (entry.manager, entry.name, entry.url))


def _public(url: str) -> str | None:
    """Where others can have it: not from this machine's disk."""
    return None if url.startswith("file:") else url.partition("#")[0]


def cyclonedx(what: Described) -> str:
    references = {entry.url: purl(entry) for entry in what.entries}
    needs = edges(what.entries)
    root = f"environment:{what.name}:{what.platform}"
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "provision"}]},
        "component": {"type": "platform", "bom-ref": root, "name": what.name, "version": what.lock_sha256[:16]},
        "properties": [{"name": "provision:platform", "value": what.platform}, {"name": "provision:lock", "value": what.lock_sha256}],
    }
    if time := what.time(None):
        metadata["timestamp"] = time
    entries = _sorted(what.entries)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{what.uuid}",
        "version": 1,
        "metadata": metadata,
        "components": [_component(entry, references[entry.url], what.licenses.get(entry.url)) for entry in entries],
        "dependencies": [
            {"ref": root, "dependsOn": sorted(references.values())},
            *({"ref": references[entry.url], "dependsOn": sorted(references[url] for url in needs[entry.url])} for entry in entries),
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _component(entry: Entry, reference: str, license_said: str | None) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": entry.name,
        "version": entry.version,
        "purl": reference,
    }
    hashes = [{"alg": name, "content": value} for name, value in (("MD5", entry.md5), ("SHA-256", entry.sha256)) if value]
    if hashes:
        component["hashes"] = hashes
    if expression := _expression(license_said):
        component["licenses"] = [{"expression": expression}]
    elif license_said:
        component["licenses"] = [{"license": {"name": license_said}}]
    if url := _public(entry.url):
        component["externalReferences"] = [{"type": "distribution", "url": url}]
    return component


def spdx(what: Described) -> str:
    entries = _sorted(what.entries)
    ids = {entry.url: f"SPDXRef-{number}-{entry.manager}-{_idstring(entry.name)}" for number, entry in enumerate(entries, start=1)}
    root = "SPDXRef-environment"
    needs = edges(what.entries)
    relationships = [_relationship("SPDXRef-DOCUMENT", "DESCRIBES", root)]
    relationships += [_relationship(root, "CONTAINS", ids[entry.url]) for entry in entries]
    relationships += [_relationship(ids[entry.url], "DEPENDS_ON", ids[url]) for entry in entries for url in needs[entry.url]]
    document: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{what.name}-{what.platform}",
        "documentNamespace": f"urn:uuid:{what.uuid}",
        "creationInfo": {"created": what.time(NO_TIME), "creators": ["Tool: provision"]},
        "packages": [
            _root_package(what, root),
            *(_spdx_package(entry, ids[entry.url], what.licenses.get(entry.url)) for entry in entries),
        ],
        "relationships": relationships,
    }
    if own := sorted(_own_licenses(what)):
        document["hasExtractedLicensingInfos"] = [{"licenseId": name, "name": name, "extractedText": NO_TEXT} for name in own]
    return json.dumps(document, indent=2) + "\n"


# SPDX wants the text of every license that is not in its list; metadata holds the name alone.
NO_TEXT = "The package names this license; its text is in the package."


def _own_licenses(what: Described) -> set[str]:
    """Licenses that packages name themselves: LicenseRef-NVIDIA-Proprietary."""
    expressions = (_expression(what.licenses.get(entry.url)) or "" for entry in what.entries)
    return {name for expression in expressions for name in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression)}


def _idstring(name: str) -> str:
    """Letters, numbers, dots and hyphens: all that an SPDX identifier may hold."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name)


def _relationship(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _root_package(what: Described, identifier: str) -> dict[str, Any]:
    return {
        "SPDXID": identifier,
        "name": what.name,
        "versionInfo": what.lock_sha256[:16],
        "comment": f"An environment for {what.platform}; the sha256 of its conda-lock.yml is {what.lock_sha256}.",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }


def _spdx_package(entry: Entry, identifier: str, license_said: str | None) -> dict[str, Any]:
    expression = _expression(license_said)
    package: dict[str, Any] = {
        "SPDXID": identifier,
        "name": entry.name,
        "versionInfo": entry.version,
        "packageFileName": entry.filename,
        "downloadLocation": _public(entry.url) or "NOASSERTION",
        "filesAnalyzed": False,
        "checksums": [
            {"algorithm": name, "checksumValue": value} for name, value in (("MD5", entry.md5), ("SHA256", entry.sha256)) if value
        ],
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": expression or "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl(entry)}],
    }
    if license_said and not expression:
        package["licenseComments"] = f"The package says: {license_said}"
    return package
