"""Images in the Docker engine: reads bases from it, and loads our images into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from provision.adapters.docker import (
    Client,
    check_engine_space,
    engine_errors,
    engine_identity,
    get_image,
    has_nvidia_runtime,
    load_archive,
    none_if_missing,
    pull_into_engine,
    save_image,
    uses_containerd_store,
)
from provision.core import tar
from provision.core.container import brief_reference
from provision.core.errors import (
    IntegrityError,
    InUse,
    InvalidSpec,
    ToolFailed,
    ToolMissing,
)
from provision.core.platforms import build_platform, image_platform
from provision.core.schema import parse_document
from provision.core.types import Image, Progress
from provision.image import layer_cache, oci_layout
from provision.image.base import BaseImage, chosen_base
from provision.image.config import LOCK_LABEL
from provision.image.engine_record import EngineRecord, read_record, write_record
from provision.image.export import docker_archive

# No config or manifest is larger: registries accept no more.
DOCUMENT_LIMIT = 4 << 20
# `docker load` unpacks an archive into a temporary folder, and each layer from there.
SPACE_FACTOR = 2
# The keys that must be equal in Docker's config and ours for the same image.
_COMPARED_SETTINGS = (
    "Cmd",
    "Entrypoint",
    "Env",
    "Labels",
    "User",
    "WorkingDir",
)


# Bases


def find_engine_base(client: Client, name: str | None, progress: Progress) -> BaseImage:
    """The chosen base, or our default, in the engine; the engine pulls it if it is missing.

    ToolMissing if it cannot be pulled, InvalidSpec for another platform.
    """
    reference = chosen_base(name)
    image = get_image(client, reference) or pull_into_engine(client, reference, progress)
    return _base_image(client, reference, image)


def _base_image(client: Client, reference: str, image: Any) -> BaseImage:
    platform = build_platform()
    attributes = image.attrs
    present = f"{attributes['Os']}/{attributes['Architecture']}"
    if present != image_platform(platform):
        raise InvalidSpec(
            f"The base image {brief_reference(reference)} is for {present}, but the environment's "
            f"packages are for {image_platform(platform)}.",
            advice="Choose a base for that platform with --base.",
        )
    image_id: str = image.id
    # The same digest as of a base that we pulled ourselves. Engines with containerd's image store
    # call an image by its manifest's digest, and only the archive that they save names the config.
    config_digest = None
    if uses_containerd_store(client):
        config_digest = config_digest_in(save_image(client, image_id, tar.CHUNK))
    return BaseImage(
        reference=reference,
        digest=config_digest or image_id,
        size=int(attributes["Size"]),
        diff_ids=tuple(attributes["RootFS"]["Layers"]),
        environment=tuple(attributes["Config"].get("Env") or ()),
        archive=lambda: save_image(client, image_id, tar.CHUNK),
    )


def config_digest_in(archive: Iterable[bytes]) -> str | None:
    """The digest of the config of the image in an archive by `docker save`, by which its files are
    named; None if the archive has no manifest.json, or several images."""
    try:
        with tar.open_stream(archive) as members:
            for member in members:
                if member.name == "manifest.json" and member.size <= DOCUMENT_LIMIT:
                    file = members.extractfile(member)
                    assert file is not None
                    rows = parse_document(file.read(), "docker-archive")
                    name = PurePosixPath(rows[0]["Config"]).name if len(rows) == 1 else ""
                    match = re.fullmatch(r"([0-9a-f]{64})(\.json)?", name)
                    return f"sha256:{match[1]}" if match else None
    except tar.UNREADABLE as error:  # InvalidDocument is a ValueError, and among them
        raise IntegrityError(
            f"The archive that the engine saved cannot be read: {error}.",
            advice="Load or pull the image again.",
        ) from error
    return None


# Our images


def load_image(image: Image, client: Client, progress: Progress) -> bool:
    """Load an image into the engine and tag it; returns whether anything had to be sent.

    Layers that the engine has, together with all below them, are not sent: it accepts a docker
    archive without them (seen with 20.10). An engine that does not (an error, or no
    image afterwards) gets all of it.
    """
    engine_id = _find_in_engine(image, client)
    is_new = engine_id is None
    if engine_id is None:
        engine_id = send_image(image, client, progress)
    _tag_as_ours(image, client, engine_id, progress, is_new=is_new)
    return is_new


def _tag_as_ours(
    image: Image, client: Client, engine_id: str, progress: Progress, *, is_new: bool
) -> None:
    """Give our image its tags and record them. A tag of another user's image is not moved."""
    engine = engine_identity(client)
    record = read_record(image.layout, engine)
    references = dict(record.references)
    repo = image.reference.rpartition(":")[0]
    for reference in (image.reference, f"{repo}:latest"):
        tagged = get_image(client, reference)
        if tagged is not None and tagged.id == engine_id:
            continue
        if tagged is not None and references.get(reference) != tagged.id:
            progress.warn(
                f"{reference} in the Docker engine is not your image, and was not replaced; "
                f"start yours by its id: {engine_id[:19]}"
            )
            continue
        name, _, tag = reference.rpartition(":")
        with engine_errors(f"tag {reference}"):
            client.api.tag(engine_id, name, tag)
        references[reference] = engine_id
    loaded = dict.fromkeys([*record.images, engine_id] if is_new else record.images)
    images = _remove_superseded(client, list(loaded), engine_id)
    write_record(image.layout, engine, EngineRecord(references=references, images=images))


def _remove_superseded(
    client: Client, loaded: Sequence[str], current: str | None
) -> tuple[str, ...]:
    """Remove our images that lost their tags to a newer build, unless something uses them.

    Returns the ids that are still in the engine.
    """
    remaining = []
    for image_id in loaded:
        candidate = get_image(client, image_id)
        if candidate is None:
            continue
        if image_id == current or candidate.tags:
            remaining.append(image_id)
            continue
        with suppress(InUse), engine_errors(f"remove {image_id}"):
            none_if_missing(partial(client.images.remove, image_id))
        if get_image(client, image_id) is not None:
            remaining.append(image_id)
    return tuple(remaining)


def send_image(image: Image, client: Client, progress: Progress) -> str:
    """Send an image that the engine does not have, without a name; returns the engine's id of it.
    Its layers must be uncompressed."""
    # containerd refuses an archive without all layers.
    shared = 0 if uses_containerd_store(client) else _shared_layers(image, client)
    if shared:
        with suppress(ToolFailed):
            return _send(image, client, progress, skip=shared)
    return _send(image, client, progress, skip=0)


def find_engine_id(image: Image, client: Client) -> str:
    """The engine's id of our image, or ToolMissing."""
    engine_id = _find_in_engine(image, client)
    if engine_id is None:
        raise ToolMissing(
            f"The image {image.reference} is not, or no longer, in the Docker engine.",
            advice="Run `provision image build` again.",
        )
    return engine_id


def _find_in_engine(image: Image, client: Client) -> str | None:
    """The engine's id of our image, or None if it does not have the image.

    Usually the image id. Engines with containerd's image store call it by the digest of a manifest
    of their own, so we look at the image of its name, which may be another user's, and at those
    that this user loaded.
    """
    loaded: Sequence[str] = ()
    if uses_containerd_store(client):
        loaded = (image.reference, *read_record(image.layout, engine_identity(client)).images)
    return _same_in_engine(image, client, loaded)


def _same_in_engine(image: Image, client: Client, names: Iterable[str]) -> str | None:
    """The image by its id, or the first of these names that means the same image; None if neither."""
    if get_image(client, image.image_id) is not None:
        return image.image_id
    for candidate in (get_image(client, name) for name in names):
        if candidate is not None and is_same(candidate.attrs, image):
            return str(candidate.id)
    return None


def is_same(attributes: Mapping[str, Any], image: Image) -> bool:
    """Whether an engine's image has the same layers as ours, and the same settings in its
    config."""
    if not oci_layout.blob(image.layout, image.image_id).is_file():
        return False
    config = oci_layout.read_config(image.layout, image.image_id)
    if attributes["RootFS"].get("Layers") != config["rootfs"]["diff_ids"]:
        return False
    settings = config.get("config") or {}
    engine_settings = attributes["Config"]
    return all(
        (settings.get(key) or None) == (engine_settings.get(key) or None)
        for key in _COMPARED_SETTINGS
    )


def unmet_requirements(client: Client, reference: str, name: str) -> tuple[str, ...]:
    """The run requirements (launch/run_spec.py) that this engine cannot meet. ToolMissing if it does not
    have the image.

    name: of the environment, for the error.
    """
    if get_image(client, reference) is None:
        raise ToolMissing(
            f"The image {reference} is not in the Docker engine.",
            advice=f"`provision image build {name}` makes it.",
        )
    return () if has_nvidia_runtime(client) else ("gpus", "memlock")


def runnable_name(client: Client, layout: Path, reference: str) -> str:
    """What to run in this engine: `reference`, or the id of the image that this user loaded last,
    if another user's image has that name. Our references end with the lock's hash."""
    tagged = get_image(client, reference)
    record = read_record(layout, engine_identity(client))
    if tagged is None or tagged.id in record.images:
        return reference
    lock_prefix = reference.rpartition(":")[2]
    candidates = filter(None, (get_image(client, row) for row in reversed(record.images)))
    ours = (it.id for it in candidates if it.labels.get(LOCK_LABEL, "").startswith(lock_prefix))
    return next(ours, reference)


def removable_images(layout: Path, client: Client) -> dict[str, int]:
    """What `remove_images` removes, with sizes in bytes, as the engine counts them: the tags that this
    user's provision made and that still name its images, and the ids of its images without a tag."""
    record = read_record(layout, engine_identity(client))
    sizes = {}
    for name in (*record.references, *record.images):
        present = get_image(client, name)
        if present is None:
            continue
        expected = record.references.get(name)
        if present.id == expected or (expected is None and not present.tags):
            sizes[name] = int(present.attrs["Size"])
    return sizes


def remove_images(layout: Path, client: Client) -> tuple[str, ...]:
    """Remove this user's images of a layout from the engine; returns the references that went.

    Images and tags of other users stay. InUse if a container uses one.
    """
    engine = engine_identity(client)
    record = read_record(layout, engine)
    removable = removable_images(layout, client)
    references = tuple(sorted(name for name in removable if name in record.references))
    for reference in references:
        with engine_errors(f"remove {reference}"):
            client.images.remove(reference)
    _remove_superseded(client, record.images, None)
    write_record(layout, engine, EngineRecord())
    return references


# Sending


def _shared_layers(image: Image, client: Client) -> int:
    """How many layers, from the bottom, the engine already has, from the base or from another image
    of ours."""
    digests = [layer.digest for layer in image.layers]
    with engine_errors("list images"):
        image_ids = client.api.images(filters={"label": LOCK_LABEL}, quiet=True)
    most = 0
    for image_id in {image.base_digest, *image_ids} - {""}:
        candidate = get_image(client, image_id)
        if candidate is None:
            continue
        pairs = zip(digests, candidate.attrs["RootFS"]["Layers"], strict=False)
        most = max(most, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return most


def _send(image: Image, client: Client, progress: Progress, *, skip: int) -> str:
    size = sum(layer.size for layer in image.layers[skip:])
    check_engine_space(client, SPACE_FACTOR * size)
    try:
        with ExitStack() as waiting:

            def archive() -> Iterator[bytes]:
                with progress.meter("sending the image to Docker", size) as meter:
                    for chunk in docker_archive(image, skip):
                        yield chunk
                        meter.advance(len(chunk))
                waiting.enter_context(progress.meter("waiting for Docker to unpack it", 0))

            loaded = load_archive(client, archive(), image.reference)
    except ToolFailed:
        # The engine compares each layer with its digest and refuses corrupt ones. Only now do we
        # look for one.
        digests = [layer.digest for layer in image.layers[skip:]]
        corrupt = layer_cache.quarantine_corrupt(image.layout, digests, thorough=True)
        if corrupt:
            raise oci_layout.corrupt_blob(oci_layout.blob(image.layout, corrupt[0])) from None
        raise
    engine_id = _same_in_engine(image, client, loaded)
    if engine_id is not None:
        return engine_id
    raise ToolFailed(
        ["docker", "load"], 0, f"the engine took the archive but has no image {image.image_id}"
    )
