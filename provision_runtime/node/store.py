"""The store of environments on this node: its files, its images, and what is active.

    images/KEY.sqsh          a verified image (or KEY.tar.gz); KEY.json says which
    images/KEY.verified      which file was verified: its hash, size, inode and time
    staging/KEY.HASH.part    an image that is being received
    staging/NAME.lease       the run that changes an environment
    envs/KEY/                the mounted image or the unpacked tree, where jobs start
    envs/KEY.installed       which image that is, and the method that installed it
    NAME -> envs/KEY         the active environment
    journal.jsonl, lock

Each change ends with one rename. A process that is killed leaves the old state or the new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from ..dataclass import frozen
from ..report.codec import decode
from . import trust
from .errors import NodeError
from .store_files import read_json

if TYPE_CHECKING:
    from .results import Texts

SUFFIXES = {"squashfs": ".sqsh", "tar": ".tar.gz"}
FOLDERS = ("images", "staging", "envs")
NO_RULES: Texts = {}
# `NAME-` and twelve digits of a hash.
KEY_HASH_LENGTH = 12


@frozen
class StoredPack:
    """What nodes need of an image's sidecar. key: `NAME-` and a hash. size, sha256: of the image. root:
    over the files in it."""

    key: str
    name: str
    format: str
    size: int
    sha256: str
    root: str


def parse_pack(document: Mapping[str, object]) -> StoredPack:
    """Raises ValueError if it describes no pack."""
    known = {field.name: document.get(field.name) for field in fields(StoredPack)}
    pack: StoredPack = decode(StoredPack, known, "the pack")
    return pack


class Store:
    """The paths below one folder.

    rules: the lab's for its stores, as nodes.yml has them: `trusted_group` and `readers`.
    """

    def __init__(self, path: str, rules: Texts = NO_RULES) -> None:
        self.path = path
        self.trusted_group = rules.get("trusted_group", "")
        self.trust = trust.Trust(self.trusted_group)
        self.readers = rules.get("readers", "")

    def join(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def image(self, pack: StoredPack) -> str:
        return self.join("images", pack.key + SUFFIXES[pack.format])

    def description(self, key: str) -> str:
        return self.join("images", f"{key}.json")

    def verified(self, key: str) -> str:
        return self.join("images", f"{key}.verified")

    def part(self, pack: StoredPack) -> str:
        """Named after its hash too: two packs of one key may differ in their bytes."""
        return self.join("staging", f"{pack.key}.{pack.sha256[:16]}.part")

    def lease(self, name: str) -> str:
        return self.join("staging", f"{name}.lease")

    def environment(self, key: str) -> str:
        return self.join("envs", key)

    def python(self, key: str) -> str:
        return self.join("envs", key, "bin", "python")

    def installed(self, key: str) -> str:
        return self.join("envs", f"{key}.installed")

    def link(self, name: str) -> str:
        return self.join(name)

    @property
    def journal(self) -> str:
        return self.join("journal.jsonl")

    @property
    def lock(self) -> str:
        return self.join("lock")

    def files(self, folder: str, suffix: str) -> list[str]:
        """The files in a folder whose names end so, without that end."""
        try:
            names = os.listdir(self.join(folder))
        except FileNotFoundError:
            return []
        return sorted(name[: -len(suffix)] for name in names if name.endswith(suffix))


def name_of(key: str) -> str:
    """The environment that a key belongs to."""
    return key[: -KEY_HASH_LENGTH - 1]


def active_key(store: Store, name: str) -> str | None:
    try:
        return os.path.basename(os.readlink(store.link(name)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeError(
            "not-ours", f"{store.link(name)} is not a link that provision made"
        ) from error


def is_verified(store: Store, pack: StoredPack) -> bool:
    """Whether the image is the file that was verified, by inode, size and time of its last
    change."""
    try:
        status = os.stat(store.image(pack))
    except FileNotFoundError:
        return False
    return read_json(store.verified(pack.key)) == verified_record(status, pack.sha256)


def verified_record(status: os.stat_result, sha256: str) -> dict[str, object]:
    return {
        "sha256": sha256,
        "size": status.st_size,
        "inode": status.st_ino,
        "mtime_ns": status.st_mtime_ns,
    }


def find_pack(store: Store, key: str) -> StoredPack | None:
    with contextlib.suppress(ValueError):
        return parse_pack(read_json(store.description(key)) or {})
    return None


def pack_of(store: Store, key: str) -> StoredPack:
    """The image with this key. Raises NodeError (not-here)."""
    pack = find_pack(store, key)
    if pack is None:
        raise NodeError("not-here", f"{store.path} has no image {key}")
    return pack


def recorded_method(store: Store, pack: StoredPack) -> str | None:
    """The method that installed this image here at some time; None for another image of the key."""
    record = read_json(store.installed(pack.key))
    if record is None or record.get("sha256") != pack.sha256:
        return None
    return str(record["method"])


def installed_method(store: Store, pack: StoredPack) -> str | None:
    """The same if the environment is there now: a mount ends with a reboot."""
    method = recorded_method(store, pack)
    directory = store.environment(pack.key)
    try:
        is_present = os.path.isdir(directory) if method == "tree" else is_mounted(directory)
    except OSError:  # the process that served a FUSE mount was killed
        return None
    return method if is_present else None


def is_mounted(directory: str) -> bool:
    """Whether a file system is mounted there; not behind a link, which names somebody else's mount.
    Raises OSError where that does not respond, which os.path.ismount hides."""
    try:
        return os.lstat(directory).st_dev != os.stat(os.path.dirname(directory)).st_dev
    except FileNotFoundError:
        return False


def received_bytes(store: Store, pack: StoredPack) -> int:
    """How much of an image has been received."""
    try:
        return os.stat(store.part(pack)).st_size
    except FileNotFoundError:
        return 0


def installed_keys(store: Store, name: str) -> list[str]:
    """The environments of this name that were installed here."""
    return [key for key in store.files("envs", ".installed") if name_of(key) == name]
