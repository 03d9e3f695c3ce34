"""`provision image push`, `pull`, `show` and `verify`, and base images without a Docker engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from provision import image as images
from provision.adapters import openssl
from provision.adapters.http.session import is_loopback
from provision.core.container import brief_reference
from provision.core.credentials import public_document
from provision.core.dataclass import dataclass
from provision.core.documents import Passport
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    ProvisionError,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.core.file_locks import environment_lock
from provision.core.paths import Folders, make_private_directory, owner_writes_only
from provision.core.platforms import PLATFORM, Platform, build_platform, image_folder
from provision.core.sbom import MEDIA_TYPE, PREDICATE_TYPE, sbom_text
from provision.core.types import Image
from provision.environment import passport as passports
from provision.resolver import spec as specs
from provision.workflow.context import Context, reported_steps
from provision.workflow.image.sbom import image_of_platform, image_sbom
from provision_runtime.report.text import format_bytes


@dataclass(frozen=True, kw_only=True)
class PulledImage:
    """reference: by digest. outputs: where the image is now."""

    reference: str
    image_id: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class VerifiedImage:
    """An image with a signature. signed_digest: its own, or of an index that names it. statements: what
    the same key signed about it."""

    reference: str
    signed_digest: str
    key: Path
    statements: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class ImageSummary:
    """An image in a registry, without its content. verdicts: of smoke tests, attached to it."""

    reference: str
    image_id: str
    labels: Mapping[str, str]
    layers: tuple[Mapping[str, Any], ...]
    verdicts: tuple[Mapping[str, Any], ...]


def push_image(
    context: Context,
    name: str,
    target: str,
    compression: images.Compression | None = None,
    attach: bool = True,
    key: openssl.SigningKey | None = None,
    platform: Platform | None = None,
) -> images.PushResult:
    """Push an environment's image to a registry; with `attach`, its smoke verdicts, SBOM and
    provenance too.

    Needs no engine. compression: None: zstd, or none where nothing is sent over a network. key: signs
    the image, and its SBOM and provenance.
    """
    specs.check_name(name)
    with environment_lock(context.folders, name, context.progress, wait=context.wait):
        passport, image = image_of_platform(context, name, platform)
        reference = images.parse_registry_reference(target, image)
        if compression is None:
            compression = "none" if is_loopback(reference.registry) else "zstd"
        packed = images.compress_image(image, compression, context.folders.packed, context.progress)
        if packed is not image:
            plain, small = (sum(layer.size for layer in it.layers) for it in (image, packed))
            context.progress.info(
                f"layers with {compression}: {format_bytes(small)}, {small / plain:.0%} of "
                f"{format_bytes(plain)}"
            )
        pushed = images.push_image(packed, reference, context.progress)
        attached: list[str] = []
        if key is not None:
            images.sign_image(reference, packed.manifest_digest, key)
            attached.append(f"signature by {key.path.name}")
        if not attach:
            return replace(pushed, attached=tuple(attached))
        try:
            for label in _attach_documents(context, passport, image, packed, reference, key):
                attached.append(label)
        except KeyboardInterrupt:
            context.progress.warn(f"{pushed.tag} was pushed, not all documents were attached")
            raise
        except ProvisionError as error:
            # The image itself was pushed, to a registry that may not support referrers.
            context.progress.warn(f"not all documents were attached to the image: {error}")
        return replace(pushed, attached=tuple(attached))


def _attach_documents(
    context: Context,
    passport: Passport,
    plain: Image,
    image: Image,
    reference: images.RegistryReference,
    key: openssl.SigningKey | None,
) -> Iterator[str]:
    """Attach what is known about an image; yields what was attached. plain: the same image as it is
    in the data folder."""

    def attach(kind: str, content: bytes, annotations: Mapping[str, str] | None = None) -> None:
        images.attach_referrer(reference, image, kind, kind, content, annotations)

    tested = passport["image"]
    if tested is not None and tested["image_id"] == plain.image_id:  # not another platform's
        for evidence in passports.smoke_attachments(passport, plain):
            attach(passports.SMOKE_MEDIA_TYPE, evidence.content, evidence.annotations)
            yield evidence.label
    sbom = image_sbom(context, passport["name"], plain, image)
    attach(MEDIA_TYPE, sbom_text(sbom).encode())
    yield MEDIA_TYPE
    request = public_document(passport["request"])
    provenance = images.statement(
        reference,
        image.manifest_digest,
        images.PREDICATE_TYPE,
        images.provenance(image, sbom, request),
    )
    content = json.dumps(provenance, sort_keys=True).encode()
    attach(images.STATEMENT_TYPE, content, {"in-toto.io/predicate-type": images.PREDICATE_TYPE})
    yield images.PREDICATE_TYPE
    if key is not None:
        bill = images.statement(
            reference, image.manifest_digest, PREDICATE_TYPE, json.loads(sbom_text(sbom))
        )
        for statement in (bill, provenance):
            images.attest_image(reference, image.manifest_digest, statement, key)
        yield "signed SBOM and provenance"


def verify_image(target: str, key: Path, platform: Platform | None = None) -> VerifiedImage:
    """Check the signature of an image in a registry, and read what its owner signed about it.

    Raises IntegrityError without a signature by this key.
    """
    public_key = openssl.read_public_key(key)
    reference = images.parse_registry_reference(target)
    remote = images.find_remote(reference, platform or build_platform())
    digests = (remote.digest, remote.root_digest)
    signed_digest = images.verify_image(reference, digests, public_key)
    return VerifiedImage(
        reference=reference.with_digest(remote.digest),
        signed_digest=signed_digest,
        key=key,
        statements=tuple(images.signed_statements(reference, remote.digest, public_key)),
    )


def pull_image(
    context: Context,
    target: str,
    outputs: Sequence[images.Output] = (),
    key: Path | None = None,
    platform: Platform | None = None,
) -> PulledImage:
    """Pull any image into the engine or to paths. Resumes an interrupted pull.

    key: a public key. Raises IntegrityError, before anything is fetched, for an image that it has
    not signed.
    """
    public_key = openssl.read_public_key(key) if key else None
    for output in outputs:
        images.check_output(output)
    destinations = outputs or (images.parse_output("docker"),)
    client = None
    if any(output.path is None for output in destinations):
        client = images.require_engine("name a path: --output oci:DIR")
    reference = images.parse_registry_reference(target)
    remote = images.find_remote(reference, platform or build_platform())
    if public_key is not None:
        images.verify_image(reference, (remote.digest, remote.root_digest), public_key)
    layout = _layout(context.folders, remote)
    with _pull_lock(context, layout):
        is_loaded = client is not None and images.has_image(client, remote.config_digest)
        if not is_loaded or len(destinations) > 1:
            nearby = _nearby_layouts(context.folders, destinations)
            images.pull_image(reference, remote, layout, context.progress, nearby)
        image = images.pulled_image(reference, remote, layout)
        with reported_steps(context.progress) as steps:
            for output in destinations:
                _deliver(context, image, remote.diff_ids, output, client)
                steps.append(f"pulled to {output}")
        shutil.rmtree(layout, ignore_errors=True)
    return PulledImage(
        reference=reference.with_digest(remote.digest),
        image_id=remote.config_digest,
        outputs=tuple(map(str, destinations)),
    )


def index_images(
    target: str, sources: Sequence[str], key: openssl.SigningKey | None = None
) -> images.IndexResult:
    """Give images of one lock for several platforms one name: an index with their digests.

    Raises InvalidSpec for images of another lock or repository, and for two of one platform.
    """
    reference = images.parse_registry_reference(target)
    if reference.digest:
        raise InvalidSpec(f"{target} names a digest, which an index gets from its content.")
    found: dict[str, images.ImageDocuments] = {}
    for source in sources:
        at = images.parse_registry_reference(source)
        if (at.registry, at.repository) != (reference.registry, reference.repository):
            raise InvalidSpec(
                f"{source} is in another repository than {target}, where an index cannot name it.",
                advice=f"Push it to {reference.registry}/{reference.repository} first.",
            )
        remote = images.find_remote(at, platform=None)
        if remote.architecture in found:
            raise InvalidSpec(
                f"{source} and {found[remote.architecture].source} are both for "
                f"linux/{remote.architecture}; an index names one image for each platform."
            )
        found[remote.architecture] = remote
    locks = {
        remote.source: remote.labels.get(images.LOCK_LABEL, "none") for remote in found.values()
    }
    if len(set(locks.values())) > 1:
        listed = "; ".join(f"{source}: {lock[:12]}" for source, lock in locks.items())
        raise InvalidSpec(
            f"These images are not of one lock, so they hold different packages ({listed}).",
            advice="Build and push each of them from the same conda-lock.yml.",
        )
    indexed = images.push_index(list(found.values()), reference)
    if key is not None:
        images.sign_image(reference, indexed.digest, key)
    return indexed


def _layout(folders: Folders, remote: images.ImageDocuments) -> Path:
    return folders.pulled / remote.digest.removeprefix("sha256:")


@contextmanager
def _pull_lock(context: Context, layout: Path) -> Iterator[None]:
    name = f"+pulled-{layout.name[:12]}"
    with (
        environment_lock(context.folders, name, context.progress, wait=context.wait),
        owner_writes_only(),
    ):
        make_private_directory(context.folders.cache)
        context.folders.pulled.mkdir(mode=0o700, exist_ok=True)
        yield


def _nearby_layouts(folders: Folders, outputs: Sequence[images.Output]) -> list[Path]:
    """Layouts on this machine that may hold some of the layers."""
    layouts = [
        output.path for output in outputs if output.path is not None and output.kind == "oci"
    ]
    layouts += folders.images.glob("*")
    layouts += folders.packed.glob("*/*")
    layouts += folders.pulled.glob("*")
    return layouts


def _deliver(
    context: Context,
    image: Image,
    diff_ids: Sequence[str],
    output: images.Output,
    client: Any | None,
) -> None:
    if output.kind in images.COMPRESSIBLE:
        images.export_image(image, output, context.progress)
        return
    is_for_engine = output.path is None
    if is_for_engine and images.has_image(client, image.image_id):
        images.tag_image(client, image.image_id, image.reference)
        return
    staging = image.layout.with_name(f"{image.layout.name}.plain")
    try:
        plain = images.decompress_image(image, diff_ids, staging, context.progress)
        if is_for_engine:
            engine_id = images.send_image(plain, client, context.progress)
            images.tag_image(client, engine_id, image.reference)
        else:
            images.export_image(plain, output, context.progress)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def show_image(context: Context, target: str, platform: Platform | None = None) -> ImageSummary:
    """An image in a registry, and the smoke verdicts attached to it."""
    reference = images.parse_registry_reference(target)
    remote = images.find_remote(reference, platform or build_platform())
    referrers = images.list_referrers(
        reference, remote.digest, passports.SMOKE_MEDIA_TYPE, context.progress.warn
    )
    verdicts = []
    for referrer in referrers:
        try:
            content = images.referrer_content(
                reference, remote.digest, referrer, passports.SMOKE_MEDIA_TYPE
            )
            verdicts.append(passports.read_smoke_attachment(content))
        except (IntegrityError, InvalidSpec, ToolFailed, ToolMissing) as error:
            # Anybody who may push there may attach something that is no verdict.
            context.progress.warn(f"skipped the attachment {referrer.digest}: {error.message}")
    verdicts.sort(key=lambda row: (str(row["place"]), str(row["report"].get("started_at"))))
    return ImageSummary(
        reference=reference.with_digest(remote.digest),
        image_id=remote.config_digest,
        labels=remote.labels,
        layers=tuple(layer.row for layer in remote.layers),
        verdicts=tuple(verdicts),
    )


def registry_base(
    context: Context, base: str | None, platform: Platform = PLATFORM
) -> images.BaseImage:
    """A base image for a machine without an engine: pulled from its registry, and from then on
    taken from the cache, as an engine does it."""
    layout = _base_layout(context.folders, base, platform)
    images.discard_if_incomplete(layout)
    present = cached_base(context, base, platform)
    if present is not None:
        return present
    reference = images.base_registry_reference(images.chosen_base(base))
    name = brief_reference(str(reference))
    try:
        remote = images.find_remote(reference, platform)
    except Unreachable as error:
        raise Unreachable(
            f"No Docker engine responds, and the base image {name} could not be pulled: "
            f"{error.message}",
            advice="Name another with --base: oci:DIR, or one in a registry that responds.",
            details=error.details,
        ) from error
    with _pull_lock(context, layout):
        images.discard_if_incomplete(layout)
        if not images.is_complete(layout):
            context.progress.info(f"pulling the base image {name}")
            nearby = _nearby_layouts(context.folders, ())
            images.pull_image(reference, remote, layout, context.progress, nearby)
    pulled = cached_base(context, base, platform)
    assert pulled is not None
    return pulled


def cached_base(
    context: Context, base: str | None, platform: Platform = PLATFORM
) -> images.BaseImage | None:
    """A base image that `registry_base` pulled before."""
    layout = _base_layout(context.folders, base, platform)
    if not images.is_complete(layout):
        return None
    found = images.read_disk_base(f"oci:{layout}", platform)
    return replace(found, reference=images.chosen_base(base))


def _base_layout(folders: Folders, base: str | None, platform: Platform) -> Path:
    """Where a base is kept that was pulled without an engine."""
    reference = images.base_registry_reference(images.chosen_base(base))
    return folders.pulled / quote(image_folder(str(reference), platform), safe="")
