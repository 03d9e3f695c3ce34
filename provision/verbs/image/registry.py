"""`provision image push`, `index` and `verify`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.adapters import openssl
from provision.adapters.http.session import is_loopback
from provision.core.credentials import public_document
from provision.core.dataclass import frozen
from provision.core.documents import Passport
from provision.core.errors import (
    InvalidSpec,
    ProvisionError,
)
from provision.core.file_locks import environment_lock
from provision.core.platforms import Platform, build_platform
from provision.core.sbom import PREDICATE_TYPE, sbom_text
from provision.core.types import Image
from provision.environment import passport as passports
from provision.image import compress, provenance
from provision.image import registry as registries
from provision.image.config import LOCK_LABEL
from provision.image.manifest import ImageDocuments
from provision.resolver import spec as specs
from provision.workflow.context import Context
from provision.workflow.image.sbom import environment_image, image_sbom
from provision.workflow.passport import read_passport
from provision_runtime.report.text import format_bytes


@frozen
class VerifiedImage:
    """An image with a signature. signed_digest: its own, or of an index that names it. statements: what
    the same key signed about it."""

    reference: str
    signed_digest: str
    key: Path
    statements: tuple[Mapping[str, Any], ...]


def push_image(
    context: Context,
    name: str,
    target: str,
    compression: compress.Compression | None = None,
    attach: bool = True,
    key: openssl.SigningKey | None = None,
    platform: Platform | None = None,
) -> registries.PushResult:
    """Push an environment's image to a registry; with `attach`, its smoke verdicts, SBOM and
    provenance too.

    Needs no engine. compression: None: zstd, or none where nothing is sent over a network. key: signs
    the image, and its SBOM and provenance.
    """
    specs.check_name(name)
    with environment_lock(context.folders, name, context.progress):
        image = environment_image(context, name, platform)
        passport = read_passport(context.folders, name)
        reference = registries.parse_registry_reference(target, image)
        registries.require_registry(reference)
        if compression is None:
            compression = "none" if is_loopback(reference.registry) else "zstd"
        packed = compress.compress_image(
            image, compression, context.folders.packed, context.progress
        )
        if packed is not image:
            plain, small = (sum(layer.size for layer in it.layers) for it in (image, packed))
            context.progress.info(
                f"layers with {compression}: {format_bytes(small)}, {small / plain:.0%} of "
                f"{format_bytes(plain)}"
            )
        pushed = registries.push_image(packed, reference, context.progress)
        attached = []
        if key is not None:
            registries.sign_image(reference, packed.manifest_digest, key)
            attached.append(f"signature by {key.path.name}")
        try:
            if attach:
                attached.extend(_attach_documents(context, passport, image, packed, reference, key))
        except ProvisionError as error:
            # The image itself was pushed.
            context.progress.warn(f"not all documents were attached to the image: {error}")
        return replace(pushed, attached=tuple(attached))


def _attach_documents(
    context: Context,
    passport: Passport,
    plain: Image,
    image: Image,
    reference: registries.RegistryReference,
    key: openssl.SigningKey | None,
) -> Iterator[str]:
    """Attach what is known about an image; yields what was attached. plain: the same image as it is
    in the data folder."""

    sbom = image_sbom(context, passport["name"], plain, image)
    request = public_document(passport["request"])
    statements: list[tuple[str, object]] = [
        (PREDICATE_TYPE, json.loads(sbom_text(sbom))),
        (provenance.PREDICATE_TYPE, provenance.provenance(image, sbom, request)),
    ]
    tested = passport["image"]
    if tested is not None and tested["image_id"] == plain.image_id:  # not another platform's
        verdicts = passports.smoke_verdicts(passport, plain)
        statements += [(provenance.SMOKE_TYPE, verdict) for verdict in verdicts]
    for predicate_type, predicate in statements:
        statement = registries.statement(
            reference, image.manifest_digest, predicate_type, predicate
        )
        registries.attach_statement(reference, image.manifest_digest, statement, key)
        yield predicate_type


def verify_image(target: str, key: Path, platform: Platform | None = None) -> VerifiedImage:
    """Check the signature of an image in a registry, and read what its owner signed about it.

    Raises IntegrityError without a signature by this key.
    """
    public_key = openssl.read_public_key(key)
    reference = registries.parse_registry_reference(target)
    remote = registries.find_remote(reference, platform or build_platform())
    digests = (remote.digest, remote.root_digest)
    signed_digest = registries.verify_image(reference, digests, public_key)
    return VerifiedImage(
        reference=reference.with_digest(remote.digest),
        signed_digest=signed_digest,
        key=key,
        statements=tuple(registries.signed_statements(reference, remote.digest, public_key)),
    )


def index_images(
    target: str, sources: Sequence[str], key: openssl.SigningKey | None = None
) -> registries.IndexResult:
    """Give images of one lock for several platforms one name: an index with their digests.

    Raises InvalidSpec for images of another lock or repository, and for two of one platform.
    """
    reference = registries.parse_registry_reference(target)
    if reference.digest:
        raise InvalidSpec(f"{target} names a digest, which an index gets from its content.")
    found: dict[str, ImageDocuments] = {}
    for source in sources:
        at = registries.parse_registry_reference(source)
        if (at.registry, at.repository) != (reference.registry, reference.repository):
            raise InvalidSpec(
                f"{source} is in another repository than {target}, where an index cannot name it.",
                advice=f"Push it to {reference.registry}/{reference.repository} first.",
            )
        remote = registries.find_remote(at, platform=None)
        if remote.architecture in found:
            raise InvalidSpec(
                f"{source} and {found[remote.architecture].source} are both for "
                f"linux/{remote.architecture}; an index names one image for each platform."
            )
        found[remote.architecture] = remote
    locks = {remote.labels.get(LOCK_LABEL, "none")[:12] for remote in found.values()}
    if len(locks) > 1:
        raise InvalidSpec(
            "These images are not of one lock, so they hold different packages "
            f"({', '.join(sorted(locks))}).",
            advice="Build and push each of them from the same conda-lock.yml.",
        )
    indexed = registries.push_index(list(found.values()), reference)
    if key is not None:
        registries.sign_image(reference, indexed.digest, key)
    return indexed
