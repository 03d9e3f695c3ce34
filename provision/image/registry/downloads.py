"""An image out of a registry into a layout on disk: each file is hashed while it is written, and what broke off is resumed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from provision.adapters.http import sha256_of
from provision.core.atomic import atomic_write
from provision.core.errors import IntegrityError, NoSpace, ProvisionError, disk_full_raises
from provision.core.types import Image, Layer, Progress
from provision.image import base_archive, exporter, layer_cache, layers, oci_layout
from provision.image.registry import manifest as documents
from provision.image.registry.client import Registry
from provision.image.registry.manifest import LISTS, MANIFESTS, Part, Remote
from provision.image.registry.reference import Target
from provision.image.registry.responses import (
    BUSY,
    LIMIT,
    PIECE,
    TRIES,
    Answer,
    Broken,
    read,
    refused,
    registry_backoff,
    retry_after,
    unreachable,
)
from provision_runtime.report.text import format_bytes

ACCEPT = {"Accept": ", ".join((*MANIFESTS, *LISTS))}
DEEPEST = 3  # indexes within indexes
PARTS = "parts"
ADVICE = "Nothing of it was kept. Run the same command again; if it stays so, tell the registry's keeper."
SPACE = "Free space there and run the same command again: what has come is kept."


def look(at: Target, tries: int = TRIES) -> Remote:
    """What lies there for linux/amd64, without its layers.

    ToolMissing where nothing does, InvalidSpec for what is no such image, IntegrityError where documents are not true to their digests.
    """
    with Registry(at) as registry:
        digest, media_type, manifest = _manifest(registry, tries)
        config, layers = documents.image_parts(at, documents.parsed(at, manifest))
        content = _document(registry, config)
    documents.check_config(at, documents.parsed(at, content), len(layers))
    return Remote(
        at=at,
        digest=digest,
        media_type=media_type,
        manifest=manifest,
        config_digest=config.digest,
        config=content,
        layers=layers,
    )


def _manifest(registry: Registry, tries: int) -> tuple[str, str, bytes]:
    """Digest, media type and bytes of the manifest that is meant, through indexes."""
    at = registry.to
    answer = registry.ask(
        "GET", f"manifests/{at.reference}", headers=ACCEPT, fine=(200,), tries=tries
    )
    digest = (
        at.digest
        or answer.headers.get("Docker-Content-Digest")
        or f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
    )
    documents.check_digest(at, digest, answer.content)
    content, media_type = (
        answer.content,
        documents.kind(
            documents.parsed(at, answer.content), answer.headers.get("Content-Type", "")
        ),
    )
    for _ in range(DEEPEST):
        if media_type not in LISTS:
            break
        found = documents.amd64(at, documents.parsed(at, content))
        digest, media_type, content = (
            found.digest,
            found.media_type,
            _document(registry, found, "manifests"),
        )
    documents.part(at, {"digest": digest, "size": len(content), "mediaType": media_type}, MANIFESTS)
    return digest, media_type, content


def _document(registry: Registry, part: Part, kind: str = "blobs") -> bytes:
    """A small file, true to its digest."""
    if part.size > LIMIT:
        raise IntegrityError(
            f"{registry.to}: a document of {part.size} bytes is none.",
            advice="See whether that is the image you mean.",
        )
    answer = registry.ask(
        "GET", f"{kind}/{part.digest}", headers=ACCEPT if kind == "manifests" else {}, fine=(200,)
    )
    documents.check_digest(registry.to, part.digest, answer.content)
    return answer.content


def pull(remote: Remote, layout: Path, progress: Progress, near: Iterable[Path] = ()) -> Image:
    """The image as a layout, which is whole once it has an index.json. A run that breaks off leaves what had come for the next one.

    near: layouts that may hold some of its layers already. Raises IntegrityError for wrong bytes, NoSpace before or when the disk is
    full, Unreachable and ToolFailed as push does.
    """
    if not is_whole(layout):
        with disk_full_raises(f"The disk of {layout} is full.", advice=SPACE):
            _fill(remote, layout, progress, list(near))
    return as_pulled(remote, layout)


def as_pulled(remote: Remote, layout: Path) -> Image:
    """The image as it lies in `layout`, or will."""
    made = tuple(
        Layer(
            group=layer.annotations.get(oci_layout.GROUP, "layer"),
            digest=layer.digest,
            size=layer.size,
            media_type=layer.media_type,
        )
        for layer in remote.layers
    )
    return Image(
        reference=f"{remote.at.registry}/{remote.at.repository}:{_tag(remote.at)}",
        layout=layout,
        manifest_digest=remote.digest,
        image_id=remote.config_digest,
        base="",
        base_digest="",
        lock_sha256=remote.labels.get("org.provision.lock", ""),
        layers=made,
    )


def _tag(at: Target) -> str:
    """An image that was asked for by digest has no tag, and engines need one."""
    return at.digest.removeprefix("sha256:")[:12] if at.digest else at.tag


def _fill(remote: Remote, layout: Path, progress: Progress, near: list[Path]) -> None:
    for folder in (oci_layout.blobs(layout), layout / PARTS):
        folder.mkdir(parents=True, exist_ok=True)
    parts = list({layer.digest: layer for layer in remote.layers}.values())
    missing = [part for part in parts if not _is_here(oci_layout.blob(layout, part.digest), part)]
    _check_space(layout, sum(part.size - _size(_beside(layout, part)) for part in missing))
    with (
        Registry(remote.at) as registry,
        progress.meter(f"pulling from {remote.at.registry}", remote.size) as meter,
    ):
        for part in parts:
            if part not in missing or _found_near(part, near, layout):
                meter.advance(part.size)
            else:
                _fetch(registry, part, _beside(layout, part), meter.advance)
                _beside(layout, part).replace(oci_layout.blob(layout, part.digest))
    _complete(remote, layout)


def _found_near(part: Part, near: list[Path], layout: Path) -> bool:
    """Take a file of another layout that has the name, once its bytes are seen to have it too."""
    for other in near:
        path = oci_layout.blob(other, part.digest)
        try:
            is_it = _is_here(path, part) and f"sha256:{sha256_of(path)}" == part.digest
        except OSError:  # of another user, perhaps
            continue
        if is_it:
            exporter.link_or_copy(path, oci_layout.blob(layout, part.digest))
            return True
    return False


def _is_here(path: Path, part: Part) -> bool:
    return path.is_file() and path.stat().st_size == part.size


def _beside(layout: Path, part: Part) -> Path:
    """Where a file lies until it is whole: not among the blobs, which only have names that are true."""
    return layout / PARTS / part.digest.removeprefix("sha256:")


def _fetch(registry: Registry, part: Part, path: Path, advance: Callable[[int], None]) -> None:
    """Make `path` that file. What an earlier run left of it is gone on with, and fetched anew if it comes out wrong."""
    tries = 2 if _size(path) else 1
    try:
        while not _receive(registry, part, path, advance):
            tries -= 1
            if not tries:
                raise IntegrityError(
                    f"{registry.to}: what was sent as {part.digest} is something else.",
                    advice=ADVICE,
                )
            path.unlink()
            advance(-part.size)
    except IntegrityError:
        path.unlink()
        raise


def _receive(registry: Registry, part: Part, path: Path, advance: Callable[[int], None]) -> bool:
    """Fetch what is missing of `path`; whether it is that file then. A try that brought something does not count as one in vain."""
    with _Growing(path) as file:
        if file.size > part.size:
            file.restart()
        advance(file.size)
        backoff = registry_backoff()
        while file.size < part.size:
            before = file.size
            trouble = _append(registry, part, file, advance)
            if file.size == part.size:
                break
            if file.size > before:
                backoff.reset()
            else:
                backoff.count_failure()
            if backoff.is_exhausted:
                raise _last_word(registry, part, trouble)
            backoff.wait(retry_after(trouble))
        return file.digest == part.digest


def _append(
    registry: Registry, part: Part, file: _Growing, advance: Callable[[int], None]
) -> Answer | Broken:
    """One request for all that is missing; what it ended with."""
    begin = file.size
    try:
        with registry.stream(
            "GET", f"blobs/{part.digest}", headers={"Range": f"bytes={begin}-"} if begin else {}
        ) as response:
            if response.status_code not in (200, 206):
                return _refusal(registry, part, file, read(registry.to, response), advance)
            if begin and not response.headers.get("Content-Range", "").startswith(
                f"bytes {begin}-"
            ):
                advance(-begin)  # a registry that sends whole files only
                file.restart()
            while piece := response.raw.read1(PIECE):
                if file.size + len(piece) > part.size:
                    raise IntegrityError(
                        f"{registry.to}: more than the {part.size} bytes of {part.digest} were sent.",
                        advice=ADVICE,
                    )
                file.write(piece)
                advance(len(piece))
    except Broken as broken:
        return broken
    return Broken("the answer ended early")


def _refusal(
    registry: Registry, part: Part, file: _Growing, answer: Answer, advance: Callable[[int], None]
) -> Answer:
    """Raises what is no use to try again."""
    if answer.status == 416:  # what is here is not of that file
        advance(-file.size)
        file.restart()
    elif answer.status not in BUSY:
        raise refused(registry.to, f"fetch {part.digest[:19]}", answer)
    return answer


def _last_word(registry: Registry, part: Part, trouble: Answer | Broken) -> ProvisionError:
    if isinstance(trouble, Answer):
        return refused(registry.to, f"fetch {part.digest[:19]}", trouble)
    return unreachable(registry.to, trouble)


class _Growing:
    """A file that is hashed as it grows, from what is there of it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self._begin()

    def _begin(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0
        self._file.seek(0)
        while piece := self._file.read(PIECE):
            self._hash.update(piece)
            self.size += len(piece)

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hash.update(piece)
        self.size += len(piece)

    def restart(self) -> None:
        self._file.truncate(0)
        self._begin()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _complete(remote: Remote, layout: Path) -> None:
    """The documents, and last of all the index, which says that the layout is whole."""
    oci_layout.blob(layout, remote.config_digest).write_bytes(remote.config)
    oci_layout.blob(layout, remote.digest).write_bytes(remote.manifest)
    (layout / "oci-layout").write_bytes(oci_layout.canonical({"imageLayoutVersion": "1.0.0"}))
    entry = {
        "annotations": {"org.opencontainers.image.ref.name": str(remote.at)},
        "digest": remote.digest,
        "mediaType": remote.media_type,
        "platform": {"architecture": "amd64", "os": "linux"},
        "size": len(remote.manifest),
    }
    layer_cache.note(layout, {layer.digest: "" for layer in remote.layers})
    index = {"manifests": [entry], "mediaType": oci_layout.INDEX, "schemaVersion": 2}
    atomic_write(layout / "index.json", oci_layout.canonical(index))
    shutil.rmtree(layout / PARTS, ignore_errors=True)


def is_whole(layout: Path) -> bool:
    """Whether a pull of it ended well. A layer that was damaged since is taken out, and with it the index: the next pull mends it."""
    index, noted = layout / "index.json", layer_cache.read(layout)
    if not index.is_file():
        return False
    are_there = noted and all(layer.path.is_file() for layer in noted)
    if (
        are_there
        and _documents_are_true(layout)
        and not layer_cache.damaged(layout, [layer.digest for layer in noted])
    ):
        return True
    index.unlink()
    return False


def _documents_are_true(layout: Path) -> bool:
    try:
        digest = json.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"]
        oci_layout.document(
            layout, json.loads(oci_layout.document(layout, digest))["config"]["digest"]
        )
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return True


def _check_space(layout: Path, size: int) -> None:
    free = shutil.disk_usage(layout).free
    if free < size:
        raise NoSpace(
            f"{format_bytes(size)} are missing of the image, and {layout} has {format_bytes(free)} free.",
            advice=SPACE,
        )


def plain(image: Image, diff_ids: Sequence[str], folder: Path, progress: Progress) -> Image:
    """The image with uncompressed layers, in `folder`: what the engine and docker's archives take. As it is where it has such layers.

    Raises IntegrityError where a layer is not what the config says of it.
    """
    if all(layer.digest == diff_id for layer, diff_id in zip(image.layers, diff_ids, strict=True)):
        return image
    base = base_archive.find_base(f"oci:{image.layout}")
    shutil.rmtree(folder, ignore_errors=True)  # of a pull that was killed
    oci_layout.blobs(folder).mkdir(parents=True)
    with progress.meter("unpacking layers", base.size) as meter:
        made = layers.write_base(base.archive(), diff_ids, oci_layout.blobs(folder), meter.advance)
    exporter.link_or_copy(
        oci_layout.blob(image.layout, image.image_id), oci_layout.blob(folder, image.image_id)
    )
    return replace(image, layout=folder, layers=tuple(made))
