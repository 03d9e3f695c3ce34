"""An image layout into the Docker engine, and out of it again."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.core.errors import InUse, ToolFailed
from provision.core.types import Image, Progress
from provision.image import layer_cache, oci_layout, tar
from provision.image.config import LOCK_LABEL, TITLE_LABEL, is_ours, repository
from provision.image.docker_sdk import Client, found, get, keeps_manifests, speaking
from provision.image.layers import PIECE


def load(image: Image, client: Client, progress: Progress) -> bool:
    """Bring an image into the engine and tag it; whether anything had to be sent.

    Layers that the engine has, with all below them, are not sent: it takes a docker archive without them (seen with 20.10).
    An engine that does not (an error, or no image afterwards) is sent all of it.
    """
    identity = called(image, client)
    send = identity is None
    if send:
        bring(image, client, progress)
        identity = called(image, client)
    name, _, tag = image.reference.rpartition(":")
    with speaking(f"tag {image.reference}"):
        for each in (tag, "latest"):
            client.api.tag(identity, name, each)
    _drop_untagged(name, client)
    return send


def bring(image: Image, client: Client, progress: Progress) -> None:
    """Send an image that the engine does not have, without a name. Its layers must be plain."""
    known = _known_layers(image, client)
    if not (known and _sent_thin(image, client, progress, known)):
        _send(image, client, progress, 0)


def called(image: Image, client: Client) -> str | None:
    """What the engine calls an image of ours, or None where it has none such.

    By the image id; engines with containerd's image store call it by the digest of a manifest of their own, and are asked by name.
    """
    if get(client, image.image_id) is not None:
        return image.image_id
    with speaking("ask for its image store"):
        if not keeps_manifests(client.info()):
            return None
    there = get(client, image.reference)
    return str(there.id) if there is not None and is_same(there.attrs, image) else None


def is_same(attributes: Mapping[str, Any], image: Image) -> bool:
    """Whether what an engine says of an image is what ours is: the same layers, and in its config the same settings."""
    path = oci_layout.blob(image.layout, image.image_id)
    config = json.loads(path.read_bytes()) if path.is_file() else None
    if config is None or attributes["RootFS"].get("Layers") != config["rootfs"]["diff_ids"]:
        return False
    ours, theirs = config.get("config") or {}, attributes["Config"]
    keys = ("Cmd", "Entrypoint", "Env", "Healthcheck", "Labels", "User", "WorkingDir")
    return all((ours.get(key) or None) == (theirs.get(key) or None) for key in keys)


def has(client: Client, image_id: str) -> bool:
    return get(client, image_id) is not None


def tag(client: Client, image: Image) -> None:
    """Give an image that the engine has its own name, and no other."""
    name, _, last = image.reference.rpartition(":")
    with speaking(f"tag {image.reference}"):
        client.api.tag(called(image, client) or image.image_id, name, last)


def _known_layers(image: Image, client: Client) -> int:
    """How many layers, from the bottom, the engine has already: those of the base or of another image of ours."""
    wanted = [layer.digest for layer in image.layers]
    with speaking("list images"):
        ours = client.api.images(filters={"label": LOCK_LABEL}, quiet=True)
    candidates = (get(client, identity) for identity in {image.base_digest, *ours} - {""})
    chains = (
        candidate.attrs["RootFS"]["Layers"] for candidate in candidates if candidate is not None
    )
    return max((_common(wanted, chain) for chain in chains), default=0)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many leading items are the same."""
    pairs = zip(one, other, strict=False)
    return next(
        (index for index, (mine, its) in enumerate(pairs) if mine != its), min(len(one), len(other))
    )


def _sent_thin(image: Image, client: Client, progress: Progress, known: int) -> bool:
    """Send all but the first `known` layers; False where the engine did not make an image of that."""
    try:
        _send(image, client, progress, known)
    except ToolFailed:
        return False
    return True


def _send(image: Image, client: Client, progress: Progress, known: int) -> None:
    size = sum(layer.size for layer in image.layers[known:])
    try:
        with (
            speaking(f"load {image.reference}"),
            progress.meter("loading the image into Docker", size) as meter,
        ):
            taken = client.images.load(_counted(archive(image, known), meter.advance))
    except ToolFailed:
        # An engine compares each layer with its digest and refuses one that was damaged here: that is looked for only now.
        if bad := layer_cache.damaged(
            image.layout, [layer.digest for layer in image.layers[known:]], thorough=True
        ):
            raise layer_cache.broken(oci_layout.blob(image.layout, bad[0])) from None
        raise
    if get(client, image.image_id) is not None:
        return
    others = [one for one in taken if is_same(one.attrs, image)]
    if not others:
        raise ToolFailed(
            ["docker", "load"], 0, f"the engine took the archive but has no image {image.image_id}"
        )
    name, _, last = image.reference.rpartition(":")  # by which it is found from now on
    with speaking(f"tag {image.reference}"):
        client.api.tag(others[0].id, name, last)


def _counted(pieces: Iterable[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        advance(len(piece))


def archive(
    image: Image,
    known: int = 0,
    tags: Sequence[str] | None = None,
    read: Callable[[Path], Iterator[bytes]] | None = None,
) -> Iterator[bytes]:
    """The image as `docker load` reads it, without its first `known` layers, straight from the blobs. read: how a blob is read."""
    read = read or _plain
    layers = [f"blobs/sha256/{layer.digest.removeprefix('sha256:')}" for layer in image.layers]
    config = f"{image.image_id.removeprefix('sha256:')}.json"
    manifest = oci_layout.canonical(
        [{"Config": config, "Layers": layers, "RepoTags": None if tags is None else list(tags)}]
    )
    yield tar.header("manifest.json", kind="file", mode=0o644, mtime=0, size=len(manifest))
    yield manifest + tar.padding(len(manifest))
    yield from member(
        config,
        oci_layout.blob(image.layout, image.image_id),
        read(oci_layout.blob(image.layout, image.image_id)),
    )
    for layer, name in list(zip(image.layers, layers, strict=True))[known:]:
        yield from member(
            name,
            oci_layout.blob(image.layout, layer.digest),
            read(oci_layout.blob(image.layout, layer.digest)),
        )
    yield tar.END


def member(name: str, path: Path, content: Iterator[bytes] | None = None) -> Iterator[bytes]:
    """A file as a member of a tar stream. content: its bytes, where they are not just read."""
    size = path.stat().st_size
    yield tar.header(name, kind="file", mode=0o644, mtime=0, size=size)
    yield from content or _plain(path)
    if rest := tar.padding(size):  # an empty piece would end the chunked request
        yield rest


def _plain(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            yield piece


def remove(name: str, client: Client) -> tuple[str, ...]:
    """Take an environment's images out of the engine; the references that were there. InUse if a container uses one."""
    repo = repository(name)
    with speaking(f"list images of {repo}"):
        tags = [tag for image in client.images.list(name=repo) for tag in image.tags]
    ours = sorted(tag for tag in tags if tag.rpartition(":")[0] == repo)
    for tag in ours:
        with speaking(f"remove {tag}"):
            client.images.remove(tag)
    _drop_untagged(repo, client)
    return tuple(ours)


def _drop_untagged(repo: str, client: Client) -> None:
    """Remove the environment's images that lost their tags to a newer build, unless a container uses them."""
    labels = [LOCK_LABEL, f"{TITLE_LABEL}={repo.partition('/')[2]}"]
    with speaking(f"list images of {repo}"):
        lost = client.api.images(filters={"dangling": True, "label": labels}, quiet=True)
    for identity in lost:
        with contextlib.suppress(InUse), speaking(f"remove {identity}"):
            steps = found(functools.partial(client.api.history, identity))
            if is_ours([step["CreatedBy"] for step in steps or ()]):
                found(functools.partial(client.images.remove, identity))
