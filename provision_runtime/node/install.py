"""Put a verified image to the path where jobs start, and take it away again.

Three ways, the cheapest first: the kernel mounts it (root), squashfuse mounts it (FUSE), or its
files are unpacked, which needs no rights but as much disk and as many inodes as the environment
has, and is checked against the digests of its distributions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from . import store as stores
from . import trust, zstd
from .errors import NodeError
from .facts import which
from .store import Store
from .ways import FUSE, KERNEL, TREE, fuse_command, ways

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOUNT_S = 60.0
START_S = 300.0
UNPACK_S = 3600.0
WAIT_POLL_S = 0.5
FUSE_SETTINGS = "/etc/fuse.conf"
CHUNK = 1 << 20
HARMLESS_MOUNT = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV
# As whom root tries whether others can start an environment: nobody, who is in no group.
NOBODY = 65534


def install(
    path: str, name: str, key: str, run: Mapping[str, str], allowed: Sequence[str] = ()
) -> dict[str, Any]:
    """Put a verified image to `envs/KEY`, in the first way that works, and start its Python once.

    allowed: only these ways, if any are named. Nothing remains of a way that does not work. `note`
    of the answer: why other users cannot start it, where that is no failure. Raises NodeError
    (not-here, not-verified, in-use, no-way, wrong-bytes, does-not-start, not-readable,
    unsafe-store).
    """
    store = Store(path, run)
    with stores.locked(store, name, run):
        pack = stores.pack_of(store, key)
        if not stores.is_verified(store, pack):
            raise NodeError("not-verified", f"{store.image(pack)} was not verified")
        installed_way = stores.installed_way(store, pack)
        if installed_way is not None:
            if installed_way == TREE and os.stat(store.environment(key)).st_uid == os.geteuid():
                os.chmod(store.environment(key), 0o755)
            note = _check(store, key, installed_way, is_new=False)
            return {"way": installed_way, "is_new": False, **note}
        _end_dead_mount(store.environment(key))
        if not _is_mount_point(store, pack):
            # Another image of the same key, or what a killed run left.
            _take_away(store, key)
        candidates = [way for way in ways(pack.format) if not allowed or way in allowed]
        installed_way = _put(store, pack, candidates)
        try:
            note = _check(store, key, installed_way, is_new=True)
        except NodeError:
            _take_away(store, key)
            raise
        record = {"sha256": pack.sha256, "way": installed_way}
        stores.write_json(store.installed(key), record)
        stores.append_journal(store, "installed", run, name=name, key=key, way=installed_way)
    return {"way": installed_way, "is_new": True, **note}


def attach(
    path: str,
    name: str,
    key: str,
    active: bool,
    wait_s: float,
    run: Mapping[str, str] = stores.NO_RULES,
) -> dict[str, Any]:
    """Use what another node installed in a store that this node shares: mount it here if it was
    mounted there, and start its Python once.

    Takes no lock and changes no file. active: wait until it is also the active one here. wait_s:
    how long this node may still see an older state of the file system (NFS: 60 s by default).
    Raises NodeError (not-shared, unsafe-store, no-way, does-not-start, not-readable).
    """
    store = Store(path, run)
    record = _wait_for_record(store, name, key, active, wait_s)
    stores.require_safe(store)
    pack = stores.pack_of(store, key)
    if record["way"] != TREE and stores.installed_way(store, pack) is None:
        _end_dead_mount(store.environment(key))
        _put(store, pack, [way for way in ways(pack.format) if way != TREE])
    note = _check(store, key, record["way"], is_new=False)
    return {"way": record["way"], "is_new": True, **note}


def _check(store: Store, key: str, way: str, is_new: bool) -> dict[str, str]:
    """That nobody else has a hand in an environment, that its readers may start it, and that it
    starts: as one of them, where root can. Raises NodeError."""
    directory = store.environment(key)
    if way != TREE and os.statvfs(directory).f_flag & HARMLESS_MOUNT != HARMLESS_MOUNT:
        raise NodeError("unsafe-store", f"{directory} is not mounted with ro,nosuid,nodev")
    # Of a mount the image was verified, and of a new tree every file.
    stores.require_safe_environment(store, key, is_deep=way == TREE and not is_new)
    note = stores.reader_note(store, store.python(key))
    start_python(directory, as_reader=None if store.readers == "me" else store.readers)
    return {"note": note} if note else {}


def _wait_for_record(
    store: Store, name: str, key: str, active: bool, wait_s: float
) -> dict[str, Any]:
    end = time.monotonic() + wait_s
    while True:
        record = stores.read_json(store.installed(key))
        pack = stores.find_pack(store, key)
        is_visible = record and pack and stores.is_verified(store, pack)
        if record and is_visible and (not active or stores.active_key(store, name) == key):
            return record
        if time.monotonic() > end:
            state = "the active one" if active else "there"
            raise NodeError(
                "not-shared", f"{key} is not {state} in {store.path} as this node sees it"
            )
        stores.require_caller()
        time.sleep(WAIT_POLL_S)


def _is_mount_point(store: Store, pack: stores.StoredPack) -> bool:
    """Whether this image was mounted at its folder, which is empty now: before a restart, or on
    another node of a shared store. There the mount would go with the folder."""
    record = stores.read_json(store.installed(pack.key))
    if record is None or record.get("sha256") != pack.sha256 or record["way"] == TREE:
        return False
    directory = store.environment(pack.key)
    is_folder = os.path.isdir(directory) and not os.path.islink(directory)
    return is_folder and not os.listdir(directory)


def _end_dead_mount(directory: str) -> None:
    """Unmount a folder whose FUSE server was killed."""
    try:
        stores.is_mounted(directory)
    except OSError:
        _unmount(directory)


def _put(store: Store, pack: stores.StoredPack, candidates: Sequence[str]) -> str:
    """Try the ways in turn; returns the one that worked."""
    steps: dict[str, Callable[[Store, stores.StoredPack], None]] = {
        KERNEL: _mount_by_kernel,
        FUSE: _mount_by_fuse,
        TREE: _unpack,
    }
    problems = []
    for way in candidates:
        try:
            steps[way](store, pack)
        except NodeError as error:
            if error.reason != "no-way":
                raise
            problems.append(f"{way}: {error.message}")
            continue
        return way
    raise NodeError("no-way", "; ".join(problems) or "nothing here can mount or unpack the image")


def _mount_by_kernel(store: Store, pack: stores.StoredPack) -> None:
    options = "ro,loop,nosuid,nodev"
    directory = store.environment(pack.key)
    _mount(["mount", "-t", "squashfs", "-o", options, store.image(pack), directory], directory)


def _mount_by_fuse(store: Store, pack: stores.StoredPack) -> None:
    command = fuse_command()
    assert command is not None
    options = "ro,nosuid,nodev"
    if os.geteuid() == 0 or _users_may_allow_others():
        options += ",allow_other"
    elif store.readers not in ("", "me"):
        raise NodeError("no-way", f"{FUSE_SETTINGS} has no user_allow_other for other readers")
    directory = store.environment(pack.key)
    _mount([command, "-o", options, store.image(pack), directory], directory)


def _users_may_allow_others() -> bool:
    try:
        with open(FUSE_SETTINGS, encoding="utf-8", errors="replace") as file:
            return "user_allow_other" in [line.strip() for line in file]
    except OSError:
        return False


def _mount(command: list[str], directory: str) -> None:
    """The folder is made, or is there: then others of a shared store may have mounts at it, and it
    stays."""
    is_new = not os.path.isdir(directory)
    os.makedirs(directory, exist_ok=True)
    status, output = _run(command, MOUNT_S)
    if status != 0 or not stores.is_mounted(directory):
        if is_new:
            os.rmdir(directory)
        raise NodeError("no-way", output or f"{command[0]} ended with status {status}")


def _unpack(store: Store, pack: stores.StoredPack) -> None:
    """Unpack next to the final path, check every file, and rename."""
    directory = store.environment(pack.key)
    staging = _unpacking(store, pack.key)
    image = store.image(pack)
    try:
        if pack.format == "squashfs":
            command = ["unsquashfs", "-no-progress", "-quiet", "-dest", staging, image]
            status, output = _run(command, UNPACK_S)
        else:
            os.mkdir(staging)
            status, output = _untar(image, staging)
        if status != 0:
            raise _unpack_error(output, status)
        os.chmod(staging, 0o755)
        _check_digests(staging, pack)
        _sync_file_system(staging)
        os.rename(staging, directory)
        stores.sync_directory(os.path.dirname(directory))
    except BaseException:
        with contextlib.suppress(OSError):
            stores.remove_tree(staging)
        raise


def _unpacking(store: Store, key: str) -> str:
    return os.path.join(store.path, "envs", f".{key}.unpacking")


def _unpack_error(output: str, status: int) -> NodeError:
    """The program's own words: a full disk is the common case."""
    if "No space left" in output:
        return NodeError("disk-full", output)
    return NodeError("no-way", output or f"unpacking ended with status {status}")


def _untar(image: str, directory: str) -> tuple[int, str]:
    """Unpack a tar.zst with the zstd command, or else with libzstd."""
    readable, writable = os.pipe()
    decompressor = _Decompressor(image, writable)
    decompressor.start()
    tar = ["tar", "--extract", "--file=-", "--same-permissions", f"--directory={directory}"]
    status, output = _run(tar, UNPACK_S, stdin=readable)
    os.close(readable)
    decompressor.join()
    # tar complains about what the decompressor did not deliver.
    return status, decompressor.problem or output


class _Decompressor(threading.Thread):
    """Writes the decompressed image into a pipe, and closes it."""

    def __init__(self, image: str, output: int) -> None:
        super().__init__()
        self._image, self._output = image, output
        self.problem = ""

    def run(self) -> None:
        try:
            self._decompress()
        except NodeError as error:
            self.problem = error.message
        except BrokenPipeError:
            pass  # tar ended, and says why
        finally:
            os.close(self._output)

    def _decompress(self) -> None:
        if which("zstd") is not None:
            argv = ["zstd", "--decompress", "--stdout", "--quiet", "--", self._image]
            status, output = _run(argv, UNPACK_S, stdout=self._output)
            if status > 0:
                self.problem = output
            return
        library = zstd.load_library()
        if library is None:
            raise NodeError("no-way", "there is neither zstd nor libzstd")
        zstd.decompress(library, self._image, self._output)


def _check_digests(tree: str, pack: stores.StoredPack) -> None:
    """Every file of a tree against the sidecar. Raises NodeError (wrong-bytes)."""
    from ..facts.digests import prefix_digests

    digests = prefix_digests(tree, deep=True)
    if digests["root"] == pack.root:
        return
    raise NodeError("wrong-bytes", f"the files that were unpacked to {tree} are not those packed")


def _sync_file_system(path: str) -> None:
    """All bytes of the file system are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
        if syncfs is None or syncfs(descriptor) != 0:
            os.sync()
    finally:
        os.close(descriptor)


def start_python(directory: str, as_reader: str | None = None) -> str:
    """Start the Python of an environment and import our runtime package; returns its version.

    as_reader: `all` or empty, or `group:NAME`: where root may, as another user. Raises NodeError
    (does-not-start): another architecture, an older glibc, a mount that does not allow programs.
    """
    python = os.path.join(directory, "bin", "python")
    code = "import provision_runtime, sys; sys.stdout.write(sys.version.split()[0])"
    command = [python, "-I", "-c", code]
    if as_reader is None or os.geteuid() != 0:
        status, output = _run(command, START_S)
    else:
        status, output = _run(
            command, START_S, become=partial(_become, trust.readers_gid(as_reader))
        )
    if status != 0:
        raise NodeError("does-not-start", f"{python}: {output}")
    return output


def _become(gid: int | None) -> None:
    os.setgroups([])
    os.setgid(NOBODY if gid is None else gid)
    os.setuid(NOBODY)


def remove_environment(store: Store, key: str) -> None:
    """Remove an environment and its image. Raises NodeError (in-use) if a process uses it, and then
    changes nothing."""
    _take_away(store, key)
    stores.remove_file(store.verified(key))
    for suffix in (*stores.SUFFIXES.values(), ".json"):
        stores.remove_file(os.path.join(store.path, "images", key + suffix))


def _take_away(store: Store, key: str) -> None:
    """Unmount or delete `envs/KEY`, and what was left of unpacking it."""
    directory = store.environment(key)
    removing = os.path.join(store.path, "envs", f".{key}.removing")
    for leftover in (_unpacking(store, key), removing):
        with contextlib.suppress(OSError):
            stores.remove_tree(leftover)
    try:
        mounted = stores.is_mounted(directory)
    except OSError:
        mounted = True  # the process that served it was killed
    if mounted:
        _unmount(directory)
        stores.remove_file(store.installed(key))
        os.rmdir(directory)
        return
    if not os.path.isdir(directory):
        stores.remove_file(store.installed(key))
        return
    users = processes_in(directory)
    if users:
        raise NodeError("in-use", f"{directory} is in use by process {users[0]}")
    stores.remove_file(store.installed(key))
    os.rename(directory, removing)
    stores.remove_tree(removing)


def _unmount(directory: str) -> None:
    commands = [
        ["umount", directory],
        ["fusermount3", "-u", directory],
        ["fusermount", "-u", directory],
    ]
    problems = []
    for command in commands:
        if which(command[0]) is None:
            continue
        status, output = _run(command, MOUNT_S)
        if status == 0:
            return
        problems.append(output)
    if any("busy" in problem for problem in problems):
        raise NodeError("in-use", f"{directory} is in use")
    raise NodeError("cannot-unmount", "; ".join(problems))


def processes_in(directory: str) -> list[int]:
    """The processes whose program, working directory or mapped files lie in a directory. Only those
    that this user may look into: all for root."""
    # The kernel names files by their real paths; a store may lie behind a link.
    prefix = os.path.realpath(directory) + "/"
    users = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _uses(f"/proc/{entry}", prefix):
            users.append(int(entry))
    return users


def _uses(process: str, prefix: str) -> bool:
    try:
        for link in ("exe", "cwd"):
            if (os.readlink(f"{process}/{link}") + "/").startswith(prefix):
                return True
        with open(f"{process}/maps", encoding="utf-8", errors="replace") as file:
            return any(f" {prefix}" in line for line in file)
    except OSError:  # it has ended, or belongs to somebody else
        return False


def _run(
    command: list[str],
    timeout_s: float,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    become: Callable[[], None] | None = None,
) -> tuple[int, str]:
    """The status of a program, and what it printed if it succeeded, else the last line of its
    errors.

    become: gives the program another user, who gets none of our variables.
    """
    argv = [which(command[0]) or command[0], *command[1:]]
    try:
        result = subprocess.run(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            cwd="/",
            preexec_fn=become,
            env=None if become is None else {},
        )
    except OSError as error:
        return 127, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not end within {timeout_s:.0f} s"
    except subprocess.SubprocessError:  # root of a container may not be another user
        return _run(command, timeout_s)
    if result.returncode == 0:
        return 0, (result.stdout or b"").decode(errors="replace").strip()
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return result.returncode, lines[-1].strip() if lines else ""
