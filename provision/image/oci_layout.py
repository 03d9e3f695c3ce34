"""OCI image layouts on disk: written beside their final name and renamed in, read back and checked.

A layout is oci-layout, index.json and blobs/sha256/*, as image-layout.md of the OCI image specification 1.1 has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.core.errors import InUse
from provision.core.file_locks import open_lock_file, try_lock
from provision.core.types import Layer

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
GROUP = "org.provision.group"
NAME = "org.opencontainers.image.ref.name"
MARK = ".provision-unfinished"  # in folders beside a layout that are ours to remove


@dataclass(frozen=True, kw_only=True)
class Written:
    """A whole layout: what its manifest says."""

    manifest_digest: str
    config_digest: str
    layers: tuple[Layer, ...]
    annotations: Mapping[str, str]


def blobs(layout: Path) -> Path:
    return layout / "blobs" / "sha256"


def blob(layout: Path, digest: str) -> Path:
    return blobs(layout) / digest.removeprefix("sha256:")


@contextmanager
def building(layout: Path) -> Iterator[Path]:
    """A folder beside `layout` to write into; it takes the name when the block ends well, and is gone when it does not.

    What an earlier run that was killed left is in `left(layout)` meanwhile, then gone. InUse where another run writes there now, or
    where a folder that is not ours has one of the names that are needed.
    """
    layout = _real(layout)
    new, old = _beside(layout)
    _check_free(layout)
    _restore(layout, old)
    _remove(left(layout))
    if new.exists():
        new.rename(left(layout))
    held = _begin(new)
    try:
        blobs(new).mkdir(parents=True)
        yield new
        if layout.exists():
            (layout / MARK).touch()
            try:
                layout.rename(old)
            except OSError:
                (layout / MARK).unlink()
                raise
        new.rename(layout)
        (layout / MARK).unlink()
        _remove(old)  # and not `new`, which may be another run's from now on
        _remove(left(layout))
    except BaseException:
        os.close(held)
        clear(layout)
        raise
    os.close(held)


def clear(layout: Path) -> None:
    """Remove what a killed build left beside a layout; killed between its two renames, the old layout comes back. What another run
    is writing stays, and so does what is not ours."""
    layout = _real(layout)
    new, old = _beside(layout)
    if not _is_busy(new):
        _remove(new)
    _remove(left(layout))
    _restore(layout, old)


def left(layout: Path) -> Path:
    """Where the layers are that a killed build had made, while the next one looks whether it can use them."""
    real = _real(layout)
    return real.with_name(f".{real.name}.left")


def _real(layout: Path) -> Path:
    """Where a link leads: the layout there is replaced, and the link stays."""
    return Path(os.path.realpath(layout))


def _check_free(layout: Path) -> None:
    new, old = _beside(layout)
    for path in (new, old, left(layout)):
        if path.exists() and not _is_ours(path):
            raise InUse(
                f"{path} is in the way, and is not of our making.",
                advice="Rename it, or name another place.",
            )
    if _is_busy(new):
        raise _busy(layout)


def _begin(new: Path) -> int:
    """Make the folder, marked as ours; an open file by which others see that somebody writes there, for as long as this process lives."""
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        new.mkdir()
    except FileExistsError as error:
        raise _busy(new) from error
    held = open_lock_file(new / MARK)
    try_lock(held)  # on a file system without locks, two runs at once are not told apart
    return held


def _is_busy(new: Path) -> bool:
    try:
        held = os.open(new / MARK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return try_lock(held) == "busy"
    finally:
        os.close(held)


def _busy(layout: Path) -> InUse:
    return InUse(
        f"Another run is writing {layout} now.",
        advice="Wait until it is done, or name another place.",
    )


def _is_ours(path: Path) -> bool:
    """Whether it was made or put aside here: marked, or empty as one is that was killed before it was."""
    return (
        path.is_dir()
        and not path.is_symlink()
        and ((path / MARK).exists() or not any(path.iterdir()))
    )


def _remove(path: Path) -> None:
    """Remove a folder if it is ours. The mark goes last: one that is half gone when we are killed is still known."""
    if _is_ours(path):
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child, ignore_errors=True)
            elif child.name != MARK:
                child.unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _restore(layout: Path, old: Path) -> None:
    if (old / MARK).exists() and not layout.exists():
        old.rename(layout)
        (layout / MARK).unlink()
    _remove(old)


def _beside(layout: Path) -> tuple[Path, Path]:
    return layout.with_name(f".{layout.name}.new"), layout.with_name(f".{layout.name}.old")


def write(
    layout: Path,
    config: Mapping[str, Any],
    layers: Sequence[Layer],
    annotations: Mapping[str, str],
    name: str,
) -> Written:
    """Complete a folder that already holds the layers: config, manifest, index."""
    config_digest, config_size = _put(layout, config)
    manifest = {
        "annotations": dict(annotations),
        "config": {"digest": config_digest, "mediaType": CONFIG, "size": config_size},
        "layers": [
            {
                "annotations": {GROUP: layer.group},
                "digest": layer.digest,
                "mediaType": layer.media_type,
                "size": layer.size,
            }
            for layer in layers
        ],
        "mediaType": MANIFEST,
        "schemaVersion": 2,
    }
    digest, size = _put(layout, manifest)
    entry = {
        "annotations": {NAME: name},
        "digest": digest,
        "mediaType": MANIFEST,
        "platform": {"architecture": "amd64", "os": "linux"},
        "size": size,
    }
    (layout / "index.json").write_bytes(
        canonical({"manifests": [entry], "mediaType": INDEX, "schemaVersion": 2})
    )
    (layout / "oci-layout").write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))
    return Written(
        manifest_digest=digest,
        config_digest=config_digest,
        layers=tuple(layers),
        annotations=dict(annotations),
    )


def index(layout: Path, names: Sequence[str]) -> bytes:
    """The index.json of a layout of ours with the image under these names; as it is if there are none."""
    content = (layout / "index.json").read_bytes()
    if not names:
        return content
    document = json.loads(content)
    (entry,) = document["manifests"]
    return canonical(
        {**document, "manifests": [{**entry, "annotations": {NAME: name}} for name in names]}
    )


def read(layout: Path) -> Written | None:
    """A layout that is whole: documents true to their digests, every layer there in its size. None for anything else.

    Layers are not hashed: each got its digest as its name once it was hashed whole, and the layout its name after that. Whether
    they were changed since, kept.damaged says.
    """
    try:
        index = json.loads((layout / "index.json").read_bytes())
        manifest_digest = str(index["manifests"][0]["digest"])
        manifest = json.loads(document(layout, manifest_digest))
        config_digest = str(manifest["config"]["digest"])
        document(layout, config_digest)
        layers = tuple(_layer(layout, row) for row in manifest["layers"])
        return Written(
            manifest_digest=manifest_digest,
            config_digest=config_digest,
            layers=layers,
            annotations=manifest["annotations"],
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _layer(layout: Path, row: Mapping[str, Any]) -> Layer:
    layer = Layer(
        group=row["annotations"][GROUP],
        digest=row["digest"],
        size=row["size"],
        media_type=row["mediaType"],
    )
    if blob(layout, layer.digest).stat().st_size != layer.size:
        raise ValueError(f"{layer.digest} is not whole")
    return layer


def document(layout: Path, digest: str) -> bytes:
    """A manifest or config of a layout. ValueError where it is not what its digest says."""
    content = blob(layout, digest).read_bytes()
    if _digest(content) != digest:
        raise ValueError(f"{digest} is another file")
    return content


def _put(layout: Path, document: Mapping[str, Any]) -> tuple[str, int]:
    content = canonical(document)
    digest = _digest(content)
    blob(layout, digest).write_bytes(content)
    return digest, len(content)


def canonical(document: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """The one way to write a document, so that its digest depends on its content only."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
