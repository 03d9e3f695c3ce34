"""Packs: an environment as one file that nodes mount or unpack, and a sidecar that describes it.

A pack lies at packs/NAME/KEY.sqsh (or KEY.tar.gz) with KEY.json next to it. The sidecar is written
last and removed first: where it exists, its image is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypedDict

from provision.adapters import gzip_stream, openssh, squashfs
from provision.adapters.http import sha256_of
from provision.core import tar
from provision.core.atomic import atomic_write, remove_tree
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.core.json_text import parse_json
from provision.core.paths import Folders
from provision.core.platforms import Platform
from provision.core.schema import InvalidDocument, parse_document
from provision.core.similar_names import did_you_mean
from provision_runtime.node.signatures import NAMESPACE

PackFormat = Literal["squashfs", "tar"]
PackCompression = Literal["zstd", "lz4", "gzip"]

SCHEMA = 1
# The version of how a lock becomes files. Raise it whenever the same lock and the same runtime
# package give other files: the key must change with them.
TREE_VERSION = 2
KEY_DIGITS = 12
SUFFIXES: Mapping[PackFormat, str] = {"squashfs": ".sqsh", "tar": ".tar.gz"}
# The store's own names on nodes (provision_runtime/node/store.py): NAME of an environment would lie
# in their place.
STORE_NAMES = ("allowed_signers", "envs", "images", "journal.jsonl", "lock", "metrics", "staging")
# The fields of StoredPack in provision_runtime/node/store.py.
PACK_KEYS = ("name", "key", "format", "size", "sha256", "root")
# The latest and the one before: a ship of the latter may still be running.
RETAINED = 2


class PackedDistribution(TypedDict):
    """A distribution in a pack. digest: of the bytes of its files."""

    version: str
    kind: str
    digest: str


class PackInputs(TypedDict):
    name: str
    key: str
    format: PackFormat
    compression: PackCompression
    install_path: str


class Sidecar(PackInputs):
    """provision/schemas/pack.schema.json describes the fields."""

    schema: int
    made_with: str
    size: int
    sha256: str
    unpacked_size: int
    unpacked_files: int
    lock_sha256: str
    content_hash: str
    runtime: dict[str, str]
    python: str
    platform: Platform
    glibc_min: str
    driver_min: str | None
    root: str
    distributions: dict[str, PackedDistribution]


@frozen
class Pack:
    image: Path
    sidecar: Sidecar

    @property
    def name(self) -> str:
        return self.sidecar["name"]

    @property
    def key(self) -> str:
        return self.sidecar["key"]

    @property
    def size(self) -> int:
        return self.sidecar["size"]

    @property
    def sidecar_path(self) -> Path:
        return self.image.with_name(f"{self.key}.json")

    @property
    def signature_path(self) -> Path:
        return self.image.with_name(f"{self.key}.signature")


def image_name(inputs: PackInputs) -> str:
    return inputs["key"] + SUFFIXES[inputs["format"]]


def pack_key(name: str, lock_sha256: str, runtime_sha256: str) -> str:
    """What the files of a pack are known by, before they exist: scripts name their own path."""
    inputs = {"lock": lock_sha256, "runtime": runtime_sha256, "tree": TREE_VERSION}
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return f"{name}-{digest[:KEY_DIGITS]}"


def check_name(name: str) -> None:
    """Raise InvalidSpec if an environment of this name has no place in the nodes' store."""
    if name in STORE_NAMES:
        raise InvalidSpec(
            f"An environment cannot be shipped as `{name}`: the store on nodes uses that name "
            "itself.",
            advice="Give it another name.",
        )


def pack_path(folders: Folders, name: str) -> Path:
    """The folder of an environment's packs; `read_pack` reads the latest one in it."""
    return folders.packs / name


def read_pack(path: Path) -> Pack:
    """The pack of a sidecar, or the latest in a folder.

    Does not read the image; `check_image` does. Raises ToolMissing if there is none, IntegrityError
    for a sidecar that is invalid or has no image of its size.
    """
    sidecar_path = _latest_sidecar(path) if path.is_dir() else path
    if sidecar_path is None or not sidecar_path.is_file():
        packed = [folder.name for folder in path.parent.glob("*")]
        raise ToolMissing(
            f"There is no pack at {path}.",
            advice=f"{did_you_mean(path.name, packed)}`provision pack NAME` makes it.",
        )
    try:
        sidecar: Sidecar = parse_document(sidecar_path.read_bytes(), "pack")
    except InvalidDocument as error:
        raise _damaged(sidecar_path, str(error)) from error
    if sidecar_path.name != f"{sidecar['key']}.json":
        raise _damaged(sidecar_path, f"it is the sidecar of {sidecar['key']}")
    image = sidecar_path.with_name(image_name(sidecar))
    size = image.stat().st_size if image.is_file() else None
    if size != sidecar["size"]:
        state = "is missing" if size is None else f"has {size} bytes, not {sidecar['size']}"
        raise _damaged(sidecar_path, f"{image.name} {state}")
    return Pack(image=image, sidecar=sidecar)


def find_pack(folders: Folders, inputs: PackInputs) -> Pack | None:
    """The pack that was made of these inputs, if it is there and complete; does not read the image."""
    try:
        pack = read_pack(pack_path(folders, inputs["name"]) / f"{inputs['key']}.json")
    except (ToolMissing, IntegrityError):
        return None
    return pack if inputs.items() <= pack.sidecar.items() else None


def sign(pack: Pack, key: Path, signed_at: str) -> None:
    """Sign what nodes compare of a pack, with an ssh key. signed_at: UTC, as text that sorts."""
    statement = {**node_pack(pack), "signed_at": signed_at}
    text = json.dumps(statement, sort_keys=True)
    signature = openssh.sign(text, key, NAMESPACE)
    document = {"statement": text, "signature": signature}
    atomic_write(pack.signature_path, json.dumps(document, sort_keys=True) + "\n")


def signature(pack: Pack) -> dict[str, str] | None:
    """The statement and its signature; None if nobody signed the pack. Raises IntegrityError."""
    return read_signature(pack.signature_path) if pack.signature_path.exists() else None


def read_signature(path: Path) -> dict[str, str]:
    try:
        document: dict[str, str] = parse_json(path.read_text(encoding="utf-8"))
        return {"statement": document["statement"], "signature": document["signature"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise IntegrityError(
            f"{path} is not a signature of a pack.",
            advice="`provision pack NAME --sign KEY` makes one.",
        ) from error


def signed_statement(path: Path, signers: Path) -> dict[str, object]:
    """What somebody whom `signers` names has signed of a pack. Raises IntegrityError."""
    signed = read_signature(path)
    content = signed["statement"].encode()
    openssh.verify_signature(content, signed["signature"].encode(), signers, NAMESPACE)
    statement: dict[str, object] = parse_json(signed["statement"])
    return statement


def node_record(path: Path) -> dict[str, object]:
    """What a node recorded of a pack (`node_pack`); empty without such a record."""
    with suppress(OSError, ValueError):
        document = parse_json(path.read_text(encoding="utf-8"))
        if isinstance(document, dict):
            return document
    return {}


def node_pack(pack: Pack) -> dict[str, object]:
    """A pack as nodes record it."""
    return {key: value for key, value in pack.sidecar.items() if key in PACK_KEYS}


def ensure_latest(pack: Pack) -> None:
    """Make a pack the latest in its folder: the lock may have gone back to an earlier one."""
    if _latest_sidecar(pack.image.parent) != pack.sidecar_path:
        os.utime(pack.sidecar_path)


def check_image(pack: Pack) -> None:
    """Raise IntegrityError if the image's bytes are not those that were packed."""
    if sha256_of(pack.image) != pack.sidecar["sha256"]:
        raise IntegrityError(
            f"{pack.image} is not what was packed: its sha256 differs from the sidecar's.",
            advice=f"`provision pack {pack.name}` makes it again.",
        )


def _latest_sidecar(folder: Path) -> Path | None:
    return max(folder.glob("*.json"), key=_modified, default=None)


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{path} does not describe a pack: {problem}.", advice="Pack the environment again."
    )


# Writing


def tool_name(pack_format: PackFormat) -> str:
    """What decides the bytes of an image, besides its tree. Raises ToolMissing if it is not
    there."""
    if pack_format == "tar":
        return f"zlib {gzip_stream.library_version()}"
    return f"{squashfs.COMMAND} {squashfs.version()}"


def write_image(tree: Path, target: Path, compression: PackCompression) -> None:
    """Write a tree as an image, with gzip as tar: times, owners and order are the same on every host.

    Raises NoSpace on a full disk.
    """
    if compression == "gzip":
        gzip_stream.compress_to(_tar_chunks(tree), target)
    else:
        squashfs.make_image(tree, target, compression, time=tar.EPOCH)


def _tar_chunks(tree: Path) -> Iterator[bytes]:
    for path in _walk(tree):
        yield from tar.tree_member(path.relative_to(tree).as_posix(), path)
    yield tar.END


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder in a fixed order, folders before what they hold."""
    with os.scandir(folder) as entries:
        items = sorted(entries, key=lambda item: os.fsencode(item.name))
    for item in items:
        yield Path(item.path)
        if item.is_dir(follow_symlinks=False):
            yield from _walk(Path(item.path))


def tree_size(tree: Path) -> tuple[int, int]:
    """Bytes of all files, and how many inodes a copy needs."""
    size, inodes = 0, 1
    for path in _walk(tree):
        status = path.lstat()
        inodes += 1
        if stat.S_ISREG(status.st_mode):
            size += status.st_size
    return size, inodes


def publish(image: Path, sidecar: Sidecar, folder: Path) -> Pack:
    """Move a finished image into a folder of packs, with its sidecar."""
    final = folder / image_name(sidecar)
    pack = Pack(image=final, sidecar=sidecar)
    image.chmod(0o644)
    with image.open("rb") as file:  # all its bytes are on the disk before its name is
        os.fsync(file.fileno())
    pack.sidecar_path.unlink(missing_ok=True)
    pack.signature_path.unlink(missing_ok=True)
    for suffix in SUFFIXES.values():  # the same environment in another format
        final.with_name(pack.key + suffix).unlink(missing_ok=True)
    image.rename(final)
    atomic_write(pack.sidecar_path, json.dumps(pack.sidecar, indent=1, sort_keys=True) + "\n")
    return pack


def remove_leftovers(folder: Path) -> None:
    """Remove what killed runs left in a folder of packs: hidden files and trees, and images without
    a sidecar. The caller holds the environment's lock."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            remove_tree(path)
            continue
        is_undescribed = any(
            path.name.endswith(suffix)
            and not path.with_name(path.name.removesuffix(suffix) + ".json").is_file()
            for suffix in SUFFIXES.values()
        )
        if path.name.startswith(".") or is_undescribed:
            path.unlink()


def remove_older(folder: Path) -> None:
    """Remove all but the latest packs of an environment."""
    by_age = sorted(folder.glob("*.json"), key=_modified)
    for sidecar in by_age[:-RETAINED]:
        sidecar.unlink()
        for suffix in (*SUFFIXES.values(), ".signature"):
            sidecar.with_name(sidecar.stem + suffix).unlink(missing_ok=True)
