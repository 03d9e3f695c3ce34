"""Images to and from registries: push with what is known of them, pull, look, and bases where no engine answers."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from provision import image as images
from provision.commands.image_sbom import image_documents
from provision.commands.plan import BuildRequest, Context
from provision.core.atomic import atomic_write
from provision.core.errors import (
    IntegrityError,
    InUse,
    InvalidSpec,
    ProvisionError,
    TimedOut,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.core.file_locks import environment_lock
from provision.core.paths import Folders
from provision.core.types import Image
from provision.environment import passport
from provision.resolver import spec

FORGOTTEN_S = 7 * 86400.0  # after that, what a pull has left is not waited for


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """reference: by digest. places: where the image is now."""

    reference: str
    image_id: str
    places: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An image in a registry, without its layers. verdicts: of smoke tests, as they are attached to it."""

    reference: str
    image_id: str
    labels: Mapping[str, str]
    layers: tuple[Mapping[str, Any], ...]
    verdicts: tuple[Mapping[str, Any], ...]


def push_image(
    context: Context,
    request: BuildRequest,
    place: str,
    compression: images.Compression = "none",
    attach: bool = True,
) -> images.PushResult:
    """`provision image push`: an environment's image to a registry, and beside it what is known of it. No engine is needed."""
    name = spec.check_name(request.name or "")
    with environment_lock(context.where, name, context.progress, wait=context.wait):
        known = passport.read(context.where.envs / name)
        if not known or not known.get("image"):
            raise ToolMissing(
                "The environment has no image.", advice="`provision image build NAME` makes it."
            )
        made = passport.to_image(known)
        to = images.parse_registry_reference(place, made)
        sent = images.compress_image(made, compression, context.where.packed, context.progress)
        pushed = images.push_image(sent, to, context.progress)
        return (
            dataclasses.replace(pushed, attached=_attach(context, name, known, made, sent, to))
            if attach
            else pushed
        )


def _attach(
    context: Context,
    name: str,
    known: Mapping[str, Any],
    made: Image,
    sent: Image,
    to: images.RegistryReference,
) -> tuple[str, ...]:
    """Verdicts and bills beside an image. A registry that takes none has the image all the same."""
    done: list[str] = []
    try:
        for evidence in passport.smoke_attachments(known, made):
            images.attach_referrer(
                to,
                sent,
                passport.SMOKE_MEDIA_TYPE,
                passport.SMOKE_MEDIA_TYPE,
                evidence.content,
                evidence.annotations,
            )
            done.append(evidence.label)
        for media_type, content in image_documents(context, name, sent):
            images.attach_referrer(to, sent, media_type, media_type, content)
            done.append(media_type)
    except ProvisionError as error:
        context.progress.warn(
            f"not everything that is known of the image was attached to it: {error}"
        )
    return tuple(done)


def pull_image(context: Context, place: str, outputs: Sequence[images.Output] = ()) -> Pulled:
    """`provision image pull`: an image of any maker into the engine, or to paths. What a pull that broke off left is gone on with."""
    wanted = outputs or (images.parse_output("docker"),)
    for to in outputs:
        images.check_output(to)
    client = _engine(outputs) if any(to.path is None for to in wanted) else None
    remote = images.find_remote(images.parse_registry_reference(place))
    layout = context.where.pulled / remote.digest.removeprefix("sha256:")
    with environment_lock(
        context.where, f"pulled-{layout.name[:12]}", context.progress, wait=context.wait
    ):
        if client is None or len(wanted) > 1 or not images.has_image(client, remote.config_digest):
            images.pull_image(remote, layout, context.progress, near=_near(context.where, wanted))
        for to in wanted:
            _deliver(context, remote, layout, to, client)
        if layout.name not in _named(context.where):  # as a base
            shutil.rmtree(layout, ignore_errors=True)
    _sweep(context)
    return Pulled(
        reference=remote.at.at(remote.digest),
        image_id=remote.config_digest,
        places=tuple(map(str, wanted)),
    )


def _engine(outputs: Sequence[images.Output]) -> Any:
    client, reason = images.connect_engine()
    if client is None:
        advice = (
            "Start it (or set DOCKER_HOST)."
            if outputs
            else "Start it, or say where the image goes: --output oci:DIR."
        )
        raise ToolMissing(f"No Docker engine answers: {reason}.", advice=advice)
    return client


def _near(where: Folders, wanted: Sequence[images.Output]) -> list[Path]:
    """Layouts on this machine that may hold some of the layers."""
    there = [to.path for to in wanted if to.path is not None and to.kind == "oci"]
    return [*there, *where.images.glob("*"), *where.packed.glob("*/*"), *where.pulled.glob("*")]


def _deliver(
    context: Context,
    remote: images.RemoteImage,
    layout: Path,
    to: images.Output,
    client: Any | None,
) -> None:
    image = images.pulled_image(remote, layout)
    if to.kind in images.COMPRESSIBLE:
        return images.export_image(image, to, context.progress)
    beside = layout.with_name(f"{layout.name}.plain")
    try:
        if to.path is not None:
            return images.export_image(
                images.decompress_image(image, remote.diff_ids, beside, context.progress),
                to,
                context.progress,
            )
        if not images.has_image(client, image.image_id):
            images.send_image(
                images.decompress_image(image, remote.diff_ids, beside, context.progress),
                client,
                context.progress,
            )
        return images.tag_image(client, image)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def show_image(context: Context, place: str) -> Seen:
    """`provision image show`: what a registry says of an image, and the verdicts attached to it."""
    remote = images.find_remote(images.parse_registry_reference(place))
    found = images.list_referrers(
        remote.at, remote.digest, passport.SMOKE_MEDIA_TYPE, context.progress.warn
    )
    said = []
    for one in found:
        try:
            said.append(
                passport.read_smoke_attachment(
                    images.referrer_content(
                        remote.at, remote.digest, one, passport.SMOKE_MEDIA_TYPE
                    )
                )
            )
        except (
            IntegrityError,
            InvalidSpec,
            ToolFailed,
            ToolMissing,
        ) as error:  # anybody who may push there may attach what is none
            context.progress.warn(f"what is attached as {one.digest} is left out: {error.message}")
    return Seen(
        reference=remote.at.at(remote.digest),
        image_id=remote.config_digest,
        labels=remote.labels,
        layers=tuple(layer.row for layer in remote.layers),
        verdicts=tuple(
            sorted(said, key=lambda one: (str(one["place"]), str(one["report"].get("started_at"))))
        ),
    )


def registry_base(context: Context, wanted: str | None) -> images.BaseImage:
    """A base where no engine answers: pulled by us and kept in the cache. By digest it is looked for there first; by tag the registry
    is asked what is meant, and what is kept of that name is used, with a warning, where it does not answer."""
    reference = images.chosen_base(wanted)
    at = images.base_registry_reference(reference)
    layout = _kept(context.where, at)
    if layout is None or at.digest is None:
        layout = _pull_base(context, at, layout)
    return dataclasses.replace(images.read_disk_base(f"oci:{layout}"), reference=reference)


def _pull_base(context: Context, at: images.RegistryReference, kept: Path | None) -> Path:
    try:
        remote = images.find_remote(at, tries=1) if kept else images.find_remote(at)
    except (
        Unreachable,
        TimedOut,
        ToolFailed,
    ) as error:  # ToolFailed: it answers with an error of its own, or refuses us
        if kept is None and isinstance(error, Unreachable):
            raise _no_base(at, error) from error
        if kept is None:
            raise
        context.progress.warn(f"{error.message} The base {at} is the one that was pulled before.")
        return kept
    layout = context.where.pulled / remote.digest.removeprefix("sha256:")
    with environment_lock(
        context.where, f"pulled-{layout.name[:12]}", context.progress, wait=context.wait
    ):
        if not images.is_whole(layout):
            context.progress.say(f"pulling the base image {at}")
            images.pull_image(remote, layout, context.progress, near=_near(context.where, ()))
    atomic_write(_note(context.where, at), layout.name)
    _sweep(context)
    return layout


def _sweep(context: Context) -> None:
    """Remove pulls that broke off and were not gone on with, and bases whose name means another one by now."""
    pulled = context.where.pulled
    named = _named(context.where)
    for layout in [
        path for path in pulled.glob("*") if path.name not in named and path.name != "names"
    ]:
        with contextlib.suppress(OSError, InUse):
            last = max(path.stat().st_mtime for path in (layout, *layout.glob("*")))
            if time.time() - last > FORGOTTEN_S:
                with environment_lock(
                    context.where, f"pulled-{layout.name[:12]}", context.progress, wait=False
                ):
                    shutil.rmtree(layout)


def _no_base(at: images.RegistryReference, error: ProvisionError) -> Unreachable:
    return Unreachable(
        f"No Docker engine answers, and the base image {at} could not be pulled: {error.message}",
        advice="Name one that is there with --base: oci:DIR, oci-archive:FILE, docker-archive:FILE, or one in a registry that answers.",
        details=error.details,
    )


def _kept(where: Folders, at: images.RegistryReference) -> Path | None:
    try:
        layout = where.pulled / _note(where, at).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    return layout if images.is_whole(layout) else None


def _named(where: Folders) -> set[str]:
    """The layouts of all bases that were pulled."""
    return {note.read_text(encoding="utf-8").strip() for note in where.pulled.glob("names/*")}


def _note(where: Folders, at: images.RegistryReference) -> Path:
    """A file that says which layout was pulled for a name."""
    return where.pulled / "names" / quote(str(at), safe="")
