"""Where an image comes from, as SLSA's provenance v1: the request, and what was put together.

It states what the lock and the image record, and no time of a build: the same image gives the same
statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.core.sbom import Sbom
from provision.core.types import Image
from provision.image import config, oci_layout
from provision.image.code import CHANGED_LABEL, REVISION_LABEL

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
_PAGE = "https://github.com/provision-gpu/provision/tree/main/docs/image-registry.md"
BUILD_TYPE = f"{_PAGE}#provenance"
SMOKE_TYPE = f"{_PAGE}#smoke-verdicts"  # the predicate is a verdict of the passport


def provenance(image: Image, sbom: Sbom, request: Mapping[str, Any]) -> dict[str, Any]:
    """The predicate of an image. request: of the environment, without credentials."""
    labels = oci_layout.read_image(image).annotations
    base: dict[str, Any] = {"name": "base", "uri": f"docker://{image.base}"}
    if config.BASE_DIGEST in labels:
        algorithm, _, value = labels[config.BASE_DIGEST].partition(":")
        base["digest"] = {algorithm: value}
    dependencies = [base, {"name": "lock", "digest": {"sha256": image.lock_sha256}}]
    if REVISION_LABEL in labels:
        code: dict[str, Any] = {"name": "code", "digest": {"gitCommit": labels[REVISION_LABEL]}}
        if CHANGED_LABEL in labels:  # the image has more than the commit
            code["annotations"] = {"changedFiles": labels[CHANGED_LABEL]}
        dependencies.append(code)
    for package in sbom.packages:
        hashes = {"md5": package.md5, "sha256": package.sha256}
        digest = {name: value for name, value in hashes.items() if value}
        if digest:
            uri = package.url or package.purl
            dependencies.append({"name": package.name, "uri": uri, "digest": digest})
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "environment": labels.get(config.TITLE_LABEL),
                "request": dict(request),
            },
            "resolvedDependencies": dependencies,
        },
        "runDetails": {
            # Any machine on which somebody ran provision: nothing isolates a build there.
            "builder": {
                "id": f"{_PAGE}#builder",
                "version": {"provision": labels.get(config.TOOL_LABEL, "")},
            }
        },
    }
