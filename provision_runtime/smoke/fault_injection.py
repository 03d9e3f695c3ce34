"""Faults that a user may inject (--inject) to see the smoke test fail.

Faults that only one phase knows are in that phase. The faults in the environment are injected into
one rank before it imports torch, and are real where this process may make them so: what they write
to the disk is deleted when the context ends, what they loaded stays loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import site
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts import libraries, origins
from .options import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .context import RankContext
    from .options import Options

# How long a fault waits for the other ranks to enter the phase in which it must be detected.
ENTRY_LIMIT_S = 5.0
PAUSE_S = 0.01
# The system error of each folder fault.
FOLDER_ERRORS = {"unwritable": errno.EROFS, "disk-full": errno.ENOSPC, "unmounted": errno.ESTALE}
# Longer than filesystem_findings.SLOW_S.
FOLDER_DELAY_S = 5.2

# A module that torch itself imports, so that torch really gets the copy in the home.
LEAKED_MODULE = "typing_extensions"
OTHER_TORCH = "0.0.0+other"
# Half of Docker's default for a container, which is enough for one rank.
SMALL_SHM = 32 * 1024**2
SHM = b"/dev/shm"
# linux/sched.h and sys/mount.h
CLONE_NEWNS = 0x00020000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18


def inject(context: RankContext, phase: str) -> None:
    """Injects the faults that strike at the beginning of a phase.

    die: like a rank that ran out of memory; stop: like under a debugger; raise: like torch;
    hang: like on a dead disk.
    """
    kinds = [
        kind
        for kind in ("die", "stop", "raise", "hang")
        if context.options.fault(kind, context.env.rank, phase)
    ]
    if not kinds:
        return
    # Rank 0's process hosts the store: ending it too early would keep the other ranks in the
    # phase before.
    deadline = time.monotonic() + ENTRY_LIMIT_S
    for rank in range(context.env.world_size):
        while context.client is not None and time.monotonic() < deadline:
            location = context.client.peek(f"at/{rank}")
            if location is not None and location["phase"] == phase:
                break
            time.sleep(PAUSE_S)
    if "die" in kinds:
        os.kill(os.getpid(), signal.SIGKILL)
    if "stop" in kinds:
        os.kill(os.getpid(), signal.SIGSTOP)
    if "raise" in kinds:
        raise RuntimeError("injected: an error as when memory is full")
    while "hang" in kinds:
        time.sleep(60)


def raise_folder_error(context: RankContext, *kinds: str) -> None:
    """Raises the system's error if the user injected one of these faults on this rank."""
    for kind in kinds:
        if context.options.fault(kind, context.env.rank):
            raise OSError(FOLDER_ERRORS[kind], os.strerror(FOLDER_ERRORS[kind]))


def delay_folder(context: RankContext) -> None:
    if context.options.fault("slow-folder", context.env.rank):
        time.sleep(FOLDER_DELAY_S)


def check_environment_faults(options: Options) -> None:
    """Refuses faults that cannot be injected in this environment. Raises UsageError."""
    kinds = {fault.kind for fault in options.faults}
    if "shadow-nccl" in kinds and nccl_library() is None:
        raise UsageError(
            "--inject shadow-nccl: this torch has no libnccl file "
            "(a CPU build, or NCCL is inside libtorch_cuda)"
        )
    if "user-site" in kinds and _leaked_source() is None:
        raise UsageError(
            f"--inject user-site: this environment has no {LEAKED_MODULE} "
            "that could be loaded from a home instead"
        )


@contextlib.contextmanager
def environment_faults(options: Options, rank: int) -> Iterator[None]:
    """The faults of this rank, for as long as torch is imported and inspected."""
    with contextlib.ExitStack() as stack:
        if options.fault("small-shm", rank):
            shrink_shared_memory()
        if options.fault("user-site", rank):
            stack.enter_context(user_site())
        if options.fault("shadow-nccl", rank):
            stack.enter_context(shadowed_nccl())
        yield


def nccl_library() -> Path | None:
    folder = origins.torch_folder()
    if folder:
        for path in libraries.bundled(folder):
            if libraries.stem(path) == "nccl":
                return Path(path)
    return None


@contextlib.contextmanager
def shadowed_nccl() -> Iterator[None]:
    """Loads a copy of the library first: the dynamic linker then takes it for the one that torch
    asks for."""
    source = nccl_library()
    assert source is not None, "check_environment_faults() refuses this"
    with tempfile.TemporaryDirectory(prefix="provision-shadow-") as folder:
        copy = Path(folder) / source.name
        try:
            os.link(source, copy)
        except OSError:
            shutil.copyfile(source, copy)
        ctypes.CDLL(str(copy))
        yield


@contextlib.contextmanager
def user_site() -> Iterator[None]:
    """Puts a home with one package before the environment's own packages, as `site` orders them."""
    source = _leaked_source()
    assert source is not None, "check_environment_faults() refuses this"
    with tempfile.TemporaryDirectory(prefix="provision-home-") as folder:
        site.USER_BASE, site.USER_SITE = folder, None
        packages = Path(site.getusersitepackages())
        packages.mkdir(parents=True)
        shutil.copyfile(source, packages / source.name)
        sys.modules.pop(LEAKED_MODULE, None)
        sys.path.insert(_site_packages_index(), str(packages))
        yield


def shrink_shared_memory() -> bool:
    """Mounts a /dev/shm of Docker's size that only this thread and its children see. Returns
    False if that is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        return False
    return not libc.mount(b"tmpfs", SHM, b"tmpfs", 0, f"size={SMALL_SHM}".encode())


def _leaked_source() -> Path | None:
    spec = find_spec(LEAKED_MODULE)
    return Path(spec.origin) if spec and spec.origin else None


def _site_packages_index() -> int:
    """Where the site-packages begin on sys.path."""
    for index, entry in enumerate(sys.path):
        if os.path.basename(entry) in ("site-packages", "dist-packages"):
            return index
    return len(sys.path)
