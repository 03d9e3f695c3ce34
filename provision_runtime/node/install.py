"""Put a verified image to the path where jobs start, and take it away again.

Three methods, the cheapest first: the kernel mounts it (root), squashfuse mounts it (FUSE), or its
files are unpacked, which needs no rights but as much disk and as many inodes as the environment
has, and is checked against the digests of its distributions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from . import store as stores
from . import store_files as files
from . import trust
from .boot import is_mounted_at_boot
from .commands import run_command, which
from .errors import NodeError
from .install_methods import FUSE, KERNEL, TREE, fuse_command, install_methods
from .signatures import record_signature, recorded_signature, require_signed
from .store import Store, StoredPack
from .store_access import reader_note, require_safe, require_safe_environment
from .store_journal import append_journal
from .store_lock import locked, require_caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .results import Installation, Texts

MOUNT_S = 60.0
START_S = 300.0
UNPACK_S = 3600.0
WAIT_POLL_S = 0.5
FUSE_SETTINGS = "/etc/fuse.conf"
HARMLESS_MOUNT = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV
# As whom root tries whether others can start an environment: nobody, who is in no group.
NOBODY = 65534


def install(
    path: str,
    name: str,
    key: str,
    run: Texts,
    allowed: Sequence[str] = (),
    signed: Texts | None = None,
) -> Installation:
    """Put a verified image to `envs/KEY`, by the first method that works, and start its Python once.

    allowed: only these methods, if any are named. signed: the signature that came with it. Nothing remains of a method that does not work.
    Raises NodeError (not-here, not-verified, in-use, no-method, wrong-bytes, does-not-start,
    not-readable, unsafe-store, not-signed, older-pack).
    """
    store = Store(path, run)
    with locked(store, name, run):
        pack = stores.pack_of(store, key)
        directory = store.environment(key)
        if not stores.is_verified(store, pack):
            raise NodeError("not-verified", f"{store.image(pack)} was not verified")
        require_signed(store, pack, signed or recorded_signature(store, key), run)
        if signed:
            record_signature(store, key, signed)
        method = stores.installed_method(store, pack)
        if method is not None:
            if method == TREE and os.stat(directory).st_uid == os.geteuid():
                os.chmod(directory, 0o755)
            return _check(store, key, method, is_new=False)
        _end_dead_mount(directory)
        if not _is_mount_point(store, pack):
            # Another image of the same key, or what a killed run left.
            _remove(store, key)
        methods = install_methods(pack.format)
        if allowed:
            methods = [method for method in methods if method in allowed]
        method = _put(store, pack, methods)
        try:
            installation = _check(store, key, method, is_new=True)
        except NodeError:
            _remove(store, key)
            raise
        files.write_json(store.installed(key), {"sha256": pack.sha256, "method": method})
        append_journal(store, "installed", run, name=name, key=key, method=method)
    return installation


def attach(path: str, name: str, key: str, active: bool, wait_s: float, run: Texts) -> Installation:
    """Use what another node installed in a store that this node shares: mount it here if it was
    mounted there, and start its Python once.

    Takes no lock and changes no file. active: wait until it is also the active one here. wait_s:
    how long this node may still see an older state of the file system (NFS: 60 s by default).
    Raises NodeError (not-shared, unsafe-store, no-method, does-not-start, not-readable).
    """
    store = Store(path, run)
    pack, method = _wait_for_record(store, name, key, active, wait_s)
    require_safe(store)
    if not active:  # it was compared with the one before
        require_signed(store, pack, recorded_signature(store, key), run)
    if method != TREE and stores.installed_method(store, pack) is None:
        _end_dead_mount(store.environment(key))
        _put(store, pack, [mount for mount in install_methods(pack.format) if mount != TREE])
    return _check(store, key, method, is_new=False)


def _check(store: Store, key: str, method: str, is_new: bool) -> Installation:
    """That nobody else has a hand in an environment, that its readers may start it, and that it
    starts: as one of them, where root can. Raises NodeError."""
    directory = store.environment(key)
    if method != TREE and os.statvfs(directory).f_flag & HARMLESS_MOUNT != HARMLESS_MOUNT:
        raise NodeError("unsafe-store", f"{directory} is not mounted with ro,nosuid,nodev")
    # A mount's image was verified, and so was every file of a new tree.
    require_safe_environment(store, key, is_deep=method == TREE and not is_new)
    installation: Installation = {"method": method, "is_new": is_new}
    if method == KERNEL and not is_mounted_at_boot(store.path):
        installation["ends_at_boot"] = True
    note = reader_note(store, store.python(key))
    if note:
        installation["note"] = note
    start_python(directory, as_reader=None if store.readers == "me" else store.readers)
    return installation


def _wait_for_record(
    store: Store, name: str, key: str, active: bool, wait_s: float
) -> tuple[StoredPack, str]:
    end = time.monotonic() + wait_s
    while True:
        pack = stores.find_pack(store, key)
        if pack is not None and stores.is_verified(store, pack):
            method = stores.recorded_method(store, pack)
            if method is not None and (not active or stores.active_key(store, name) == key):
                return pack, method
        if time.monotonic() > end:
            state = "the active one" if active else "there"
            raise NodeError(
                "not-shared", f"{key} is not {state} in {store.path} as this node sees it"
            )
        require_caller()
        time.sleep(WAIT_POLL_S)


def _is_mount_point(store: Store, pack: StoredPack) -> bool:
    """Whether this image was mounted at its folder, which is empty now: before a restart, or on
    another node of a shared store. There the mount would go with the folder."""
    if stores.recorded_method(store, pack) in (None, TREE):
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


def _put(store: Store, pack: StoredPack, candidates: Sequence[str]) -> str:
    """Try the methods in turn; returns the one that worked."""
    steps = {KERNEL: _mount_by_kernel, FUSE: _mount_by_fuse, TREE: _unpack}
    problems = []
    for method in candidates:
        try:
            steps[method](store, pack)
            return method
        except NodeError as error:
            if error.reason != "no-method":
                raise
            problems.append(f"{method}: {error.message}")
    message = "; ".join(problems) or "nothing here can mount or unpack the image"
    raise NodeError("no-method", message)


def _mount_by_kernel(store: Store, pack: StoredPack) -> None:
    _mount(store, pack, ["mount", "-t", "squashfs", "-o", "ro,loop,nosuid,nodev"])


def _mount_by_fuse(store: Store, pack: StoredPack) -> None:
    options = "ro,nosuid,nodev"
    if os.geteuid() == 0 or _users_may_allow_others():
        options += ",allow_other"
    elif store.readers not in ("", "me"):
        raise NodeError("no-method", f"{FUSE_SETTINGS} has no user_allow_other for other readers")
    _mount(store, pack, [fuse_command() or "squashfuse", "-o", options])


def _users_may_allow_others() -> bool:
    try:
        with open(FUSE_SETTINGS, encoding="utf-8", errors="replace") as file:
            return "user_allow_other" in [line.strip() for line in file]
    except OSError:
        return False


def _mount(store: Store, pack: StoredPack, command: list[str]) -> None:
    """The folder is made, or is there: then others of a shared store may have mounts at it, and it
    stays."""
    directory = store.environment(pack.key)
    is_new = not os.path.isdir(directory)
    os.makedirs(directory, exist_ok=True)
    status, output = run_command([*command, store.image(pack), directory], MOUNT_S)
    if status != 0 or not stores.is_mounted(directory):
        if is_new:
            os.rmdir(directory)
        raise NodeError("no-method", output or f"{command[0]} ended with status {status}")


def _unpack(store: Store, pack: StoredPack) -> None:
    """Unpack next to the final path, check every file, and rename."""
    from ..facts.digests import prefix_digests

    directory, staging = store.environment(pack.key), _unpacking(store, pack.key)
    image = store.image(pack)
    try:
        command = ["unsquashfs", "-no-progress", "-quiet", "-dest", staging, image]
        if pack.format == "tar":
            os.mkdir(staging)
            command = ["tar", "--extract", "--gzip", "--same-permissions"]
            command += [f"--directory={staging}", f"--file={image}"]
        status, output = run_command(command, UNPACK_S)
        if "No space left" in output:
            raise NodeError("disk-full", output)
        if status != 0:
            raise NodeError("no-method", output or f"unpacking ended with status {status}")
        os.chmod(staging, 0o755)
        if prefix_digests(staging, deep=True)["root"] != pack.root:
            message = f"the files that were unpacked to {staging} are not those packed"
            raise NodeError("wrong-bytes", message)
        # All bytes of the file system are on the disk when this returns.
        descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None).syncfs(descriptor) != 0:
                os.sync()
        finally:
            os.close(descriptor)
        os.rename(staging, directory)
        files.sync_directory(os.path.dirname(directory))
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(staging)
        raise


def _unpacking(store: Store, key: str) -> str:
    return store.join("envs", f".{key}.unpacking")


def start_python(directory: str, as_reader: str | None = None) -> None:
    """Start the Python of an environment and import our runtime package.

    as_reader: `all` or empty, or `group:NAME`: where root may, as another user. Raises NodeError
    (not-installed; does-not-start): another architecture, an older glibc, a mount that does not allow
    programs.
    """
    python = os.path.join(directory, "bin", "python")
    if not os.path.lexists(python):
        raise NodeError("not-installed", f"there is no {python}")
    become = None
    if as_reader is not None and os.geteuid() == 0:
        become = partial(_become, trust.readers_gid(as_reader))
    status, output = run_command([python, "-I", "-c", "import provision_runtime"], START_S, become)
    if status != 0:
        raise NodeError("does-not-start", f"{python}: {output}")


def _become(gid: int | None) -> None:
    os.setgroups([])
    os.setgid(NOBODY if gid is None else gid)
    os.setuid(NOBODY)


def remove_environment(store: Store, key: str) -> None:
    """Remove an environment and its image. Raises NodeError (in-use) if a process uses it, and then
    changes nothing."""
    _remove(store, key)
    for suffix in (*stores.SUFFIXES.values(), ".json", ".signature", ".verified"):
        files.remove_file(store.join("images", key + suffix))


def _remove(store: Store, key: str) -> None:
    """Unmount or delete `envs/KEY`, and what was left of unpacking it."""
    directory = store.environment(key)
    removing = store.join("envs", f".{key}.removing")
    for leftover in (_unpacking(store, key), removing):
        with contextlib.suppress(OSError):
            files.remove_tree(leftover)
    try:
        is_mounted = stores.is_mounted(directory)
    except OSError:
        is_mounted = True  # the process that served it was killed
    if is_mounted:
        _unmount(directory)
        files.remove_file(store.installed(key))
        os.rmdir(directory)
        return
    require_unused(store, key)
    files.remove_file(store.installed(key))
    if os.path.isdir(directory):
        os.rename(directory, removing)
        files.remove_tree(removing)


def require_unused(store: Store, key: str) -> None:
    """Raise NodeError (in-use) if a process that this user can see uses an environment."""
    directory = store.environment(key)
    users = processes_in(directory) if os.path.isdir(directory) else []
    if users:
        raise NodeError("in-use", f"{directory} is in use by process {users[0]}")


def _unmount(directory: str) -> None:
    problems = []
    for command in (["umount"], ["fusermount3", "-u"], ["fusermount", "-u"]):
        if which(command[0]) is None:
            continue
        status, output = run_command([*command, directory], MOUNT_S)
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
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and int(entry) != os.getpid() and _uses(f"/proc/{entry}", prefix)
    ]


def _uses(process: str, prefix: str) -> bool:
    try:
        for link in ("exe", "cwd"):
            if (os.readlink(f"{process}/{link}") + "/").startswith(prefix):
                return True
        with open(f"{process}/maps", encoding="utf-8", errors="replace") as file:
            return any(f" {prefix}" in line for line in file)
    except OSError:  # it has ended, or belongs to somebody else
        return False
