"""The store of environments on this node: where things lie, who works in it, what is active.

    images/KEY.sqsh          a verified image (or KEY.tar.zst), with its sidecar KEY.json
    images/KEY.verified      which file was verified: its hash, size, inode and time
    staging/KEY.HASH.part    an image that is being received
    staging/NAME.lease       the run that changes an environment
    envs/KEY/                the mounted image or the unpacked tree, where jobs start
    envs/KEY.installed       which image that is, and how it was put there
    NAME -> envs/KEY         the active environment
    journal.jsonl, lock

Each change ends with one rename. A process that is killed leaves the old state or the new one.

Paths are plain text, because importing pathlib takes half as long as starting Python, and a ship
without changes runs this on every node.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import stat
import sys
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from . import trust
from .errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SUFFIXES = {"squashfs": ".sqsh", "tar": ".tar.zst"}
# Another action of the same run may still be at work: its caller died, and it is about to see that.
LOCK_WAIT_S = 30.0
LOCK_POLL_S = 0.2
# A run that was killed leaves its lease. Other hosts take it for dead after this time; the host
# that it ran on sees at once that it is gone.
LEASE_S = 1800.0
PARTS_KEPT_S = 7 * 86400.0
FOLDERS = ("images", "staging", "envs")
NO_RULES: Mapping[str, str] = {}
# `NAME-` and twelve digits of a hash.
KEY_HASH_LENGTH = 12


@dataclass(frozen=True)
class StoredPack:
    """What nodes need of an image's sidecar. key: `NAME-` and a hash. size, sha256: of the image. root:
    over the files in it."""

    key: str
    name: str
    format: str
    size: int
    sha256: str
    root: str


def parse_pack(sidecar: Mapping[str, Any]) -> StoredPack:
    """Raises ValueError if it is no sidecar."""
    values = {field.name: sidecar.get(field.name) for field in fields(StoredPack)}
    for name, value in values.items():
        if not isinstance(value, int if name == "size" else str):
            raise ValueError(f"{name} of the sidecar is {value!r}")
    return StoredPack(**values)  # type: ignore[arg-type]


class Store:
    """Where things lie below one path.

    rules: the lab's for its stores, as nodes.yml has them: `trusted_group` and `readers`.
    """

    def __init__(self, path: str, rules: Mapping[str, str] = NO_RULES) -> None:
        self.path = path
        self.trusted_group = rules.get("trusted_group", "")
        self.trust = trust.Trust(self.trusted_group)
        self.readers = rules.get("readers", "")

    def image(self, pack: StoredPack) -> str:
        return os.path.join(self.path, "images", pack.key + SUFFIXES[pack.format])

    def sidecar(self, key: str) -> str:
        return os.path.join(self.path, "images", f"{key}.json")

    def verified(self, key: str) -> str:
        return os.path.join(self.path, "images", f"{key}.verified")

    def part(self, pack: StoredPack) -> str:
        """Named after its hash too: two packs of one key may differ in their bytes."""
        return os.path.join(self.path, "staging", f"{pack.key}.{pack.sha256[:16]}.part")

    def lease(self, name: str) -> str:
        return os.path.join(self.path, "staging", f"{name}.lease")

    def environment(self, key: str) -> str:
        return os.path.join(self.path, "envs", key)

    def python(self, key: str) -> str:
        return os.path.join(self.path, "envs", key, "bin", "python")

    def installed(self, key: str) -> str:
        return os.path.join(self.path, "envs", f"{key}.installed")

    def link(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def journal(self) -> str:
        return os.path.join(self.path, "journal.jsonl")

    @property
    def lock(self) -> str:
        return os.path.join(self.path, "lock")


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
    record = read_json(store.verified(pack.key))
    if record is None or record.get("sha256") != pack.sha256:
        return False
    try:
        return record == verified_record(os.stat(store.image(pack)), pack.sha256)
    except FileNotFoundError:
        return False


def verified_record(status: os.stat_result, sha256: str) -> dict[str, Any]:
    return {
        "sha256": sha256,
        "size": status.st_size,
        "inode": status.st_ino,
        "mtime_ns": status.st_mtime_ns,
    }


def find_pack(store: Store, key: str) -> StoredPack | None:
    sidecar = read_json(store.sidecar(key))
    with contextlib.suppress(ValueError):
        return parse_pack(sidecar or {})
    return None


def pack_of(store: Store, key: str) -> StoredPack:
    """The image with this key. Raises NodeError (not-here)."""
    pack = find_pack(store, key)
    if pack is None:
        raise NodeError("not-here", f"{store.path} has no image {key}")
    return pack


def installed_way(store: Store, pack: StoredPack) -> str | None:
    """How this image was put to its path, if it is there: a mount ends with a reboot."""
    record = read_json(store.installed(pack.key))
    if record is None or record.get("sha256") != pack.sha256:
        return None
    way = str(record["way"])
    directory = store.environment(pack.key)
    try:
        is_present = os.path.isdir(directory) if way == "tree" else is_mounted(directory)
    except OSError:  # the process that served a FUSE mount was killed
        return None
    return way if is_present else None


def is_mounted(directory: str) -> bool:
    """Whether a file system is mounted there; not behind a link, which names somebody else's mount.
    Raises OSError where that does not answer, which os.path.ismount hides."""
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


@contextlib.contextmanager
def locked(store: Store, name: str, run: Mapping[str, str]) -> Iterator[None]:
    """Work in the store alone, as a part of this run.

    run: `id`; `source`, the host and folder that it runs from, where only one run of an environment
    is at work at a time; and `by`, as a person reads it. Raises NodeError (in-use, unsafe-store).
    """
    # What the user's umask is decides nothing here.
    before = os.umask(0o002 if store.trusted_group else 0o022)
    descriptor = None
    try:
        _make_folders(store)
        require_safe(store)
        descriptor = open_file(store, store.lock, os.O_RDWR | os.O_CREAT)
        _wait_for_lock(descriptor, store)
        _take_lease(store, name, run)
        yield
    finally:
        os.umask(before)
        if descriptor is not None:
            os.close(descriptor)


def _make_folders(store: Store) -> None:
    """Make what is missing, one folder after the other: no link of somebody else is followed.

    Who may read the store is decided by its own folder, and what is below is open to all. That folder
    is left as somebody made it, unless the lab's rules say who works with it.
    """
    missing = []
    path = store.path
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    require_safe_path(store, path)
    for folder in reversed(missing):
        _make_folder(store, folder)
    if missing or store.trusted_group or store.readers:
        _open_folder(store, store.path, store.readers)
    for name in FOLDERS:
        folder = os.path.join(store.path, name)
        _make_folder(store, folder)
        _open_folder(store, folder, "all")


def _make_folder(store: Store, folder: str) -> None:
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        pass
    else:
        _open_folder(store, folder, "all")
    require_safe_path(store, folder)


def _open_folder(store: Store, folder: str, readers: str) -> None:
    """Give a folder its permissions, if it is ours to give."""
    mode = 0o755
    if readers == "me":
        mode = 0o700
    elif readers.startswith(trust.GROUP_READERS):
        mode = 0o750
    group = readers
    if store.trusted_group:
        mode, group = mode | 0o2070, trust.GROUP_READERS + store.trusted_group
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if os.geteuid() not in (0, status.st_uid):
            return
        gid = trust.readers_gid(group)
        if gid not in (None, status.st_gid):
            os.fchown(descriptor, -1, gid)
        if stat.S_IMODE(status.st_mode) != mode or gid not in (None, status.st_gid):
            os.fchmod(descriptor, mode)
    except KeyError:
        raise NodeError(
            "not-readable", f"there is no such group as in `readers: {readers}`"
        ) from None
    finally:
        os.close(descriptor)


def open_file(store: Store, path: str, flags: int) -> int:
    """A file of the store itself, open for writing; never what somebody put in its place: a link, a
    second name of another file, a pipe that would wait for its reader. Raises NodeError
    (not-ours)."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise NodeError("not-ours", f"{path} is not a file that provision made")
    if status.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o664 if store.trusted_group else 0o644)
    return descriptor


def require_safe(store: Store) -> None:
    """Raise NodeError (unsafe-store) if another user could change what jobs run from here, or where
    we write: or did so while the store was open. Of a store that is not there, its path."""
    for folder in (store.path, *(os.path.join(store.path, name) for name in FOLDERS)):
        require_safe_path(store, folder)
        _refuse(store.trust.entries_problem(folder))


def require_safe_environment(store: Store, key: str, is_deep: bool = False) -> None:
    """The same of an environment that is installed: of what its Python is started from; is_deep: of
    all its files."""
    require_safe_path(store, store.python(key))
    if is_deep:
        _refuse(store.trust.entries_problem(store.environment(key), is_deep=True))


def reader_note(store: Store, path: str) -> str:
    """What keeps other users from something in the store, where the lab does not say who should read
    it: root ships for all, and another account for itself. Raises NodeError (not-readable) if it
    keeps those whom it is for."""
    readers = store.readers or "all"
    problem = None if readers == "me" else trust.reader_problem(path, readers)
    if problem is not None and (store.readers or os.geteuid() == 0):
        raise NodeError("not-readable", problem)
    return problem or ""


def require_safe_path(store: Store, path: str) -> None:
    _refuse(store.trust.path_problem(path))


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise NodeError("unsafe-store", problem)


def _wait_for_lock(descriptor: int, store: Store) -> None:
    end = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise NodeError(
                    "in-use", f"another process works in {store.path}: {_lock_holder(store)}"
                ) from None
            time.sleep(LOCK_POLL_S)
        except OSError:
            # A file system without locks. The lease still keeps other runs out.
            return


def _lock_holder(store: Store) -> str:
    """The run of the newest lease."""
    leases = []
    staging = os.path.join(store.path, "staging")
    for file in os.listdir(staging):
        lease = read_json(os.path.join(staging, file)) if file.endswith(".lease") else None
        if lease is not None:
            leases.append(lease)
    newest = max(leases, key=lambda lease: float(lease["at"]), default=None)
    return str(newest["by"]) if newest else "unknown"


def _take_lease(store: Store, name: str, run: Mapping[str, str]) -> None:
    lease = read_json(store.lease(name))
    if lease is not None and lease["id"] != run["id"] and lease["source"] != run["source"]:
        age_s = time.time() - lease["at"]
        if 0 <= age_s < LEASE_S:
            raise NodeError(
                "in-use",
                f"{lease['by']} is shipping {name} here (last seen {age_s / 60:.0f} min ago; "
                f"taken for dead after {LEASE_S / 60:.0f} min)",
            )
    write_json(store.lease(name), {**run, "at": time.time()})


def prepare(path: str, name: str, run: Mapping[str, str]) -> dict[str, Any]:
    """Make the store's folders and begin a run: something else brings the image (sbcast)."""
    with locked(Store(path, run), name, run):
        return {}


def release(path: str, name: str, run: Mapping[str, str]) -> dict[str, Any]:
    """End a run here: another may begin."""
    store = Store(path, run)
    require_safe(store)
    lease = read_json(store.lease(name))
    if lease is not None and lease["id"] == run["id"]:
        remove_file(store.lease(name))
    return {}


def require_caller() -> None:
    """Raise NodeError (killed) if nobody reads our answer any more: the caller was killed, or the
    connection is gone. Then the lock must not stay with us."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    for _, events in poll.poll(0):
        if events & (select.POLLERR | select.POLLHUP):
            raise NodeError("killed", "the caller is gone")


def append_journal(store: Store, event: str, run: Mapping[str, str], **fields: Any) -> None:
    line = json.dumps({"at": time.time(), "event": event, "run": run["id"], **fields}) + "\n"
    descriptor = open_file(store, store.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode("utf-8"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_journal(store: Store, name: str) -> list[dict[str, Any]]:
    """What happened to an environment here, oldest first. A line that was cut off by a power failure
    is skipped."""
    events = []
    try:
        with open(store.journal, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("name") == name and "key" in event:
            events.append(event)
    return events


def read_json(path: str) -> dict[str, Any] | None:
    """A document that we wrote; None if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_json(path: str, document: Mapping[str, Any]) -> None:
    """Replace a document; it is on the disk when this returns."""
    write_text(path, f"{path}.new", json.dumps(document, sort_keys=True) + "\n")


def write_text(path: str, staged: str, text: str) -> None:
    """Replace a file by one that was written at `staged`. What is there already, of a killed run,
    or a link that somebody else put there, is removed and not written to."""
    remove_file(staged)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(staged, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, path)
    sync_directory(os.path.dirname(path))


def remove_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a folder with all that is in it; of a link only the link."""
    import shutil  # most actions do not need it

    if os.path.islink(path):
        remove_file(path)
    elif os.path.lexists(path):
        shutil.rmtree(path)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Some network file systems cannot."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def installed_keys(store: Store, name: str) -> list[str]:
    """The environments of this name that were installed here."""
    keys = []
    try:
        files = os.listdir(os.path.join(store.path, "envs"))
    except FileNotFoundError:
        return []
    for file in files:
        key, suffix = os.path.splitext(file)
        if suffix == ".installed" and name_of(key) == name:
            keys.append(key)
    return sorted(keys)
