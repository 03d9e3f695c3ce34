"""Faults in what surrounds torch, injected into one rank before it imports torch: a shadowed NCCL, a user site, a small /dev/shm.

Each is the real thing where this process may do it. What it puts on the disk is gone when the context ends; what it loaded stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import site
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...facts import libraries, origins
from ..options import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..options import Options

KINDS = ("shadow-nccl", "user-site", "small-shm", "other-torch")
# A module that torch itself imports, so that the copy in the home is really the one it gets.
LEAKED = "typing_extensions"
OTHER_TORCH = "0.0.0+other"
# What Docker gives a container that asks for nothing.
SMALL_SHM = 64 * 1024**2
SHM = b"/dev/shm"
CLONE_NEWNS = 0x00020000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18


def check(options: Options) -> None:
    """Refuse what cannot be rehearsed in this environment. Raises UsageError."""
    kinds = {fault.kind for fault in options.faults}
    if "shadow-nccl" in kinds and own_nccl() is None:
        raise UsageError(
            "--inject shadow-nccl: torch has no libnccl of its own here (a CPU build, or NCCL is inside libtorch_cuda)"
        )
    if "user-site" in kinds and _leaked_source() is None:
        raise UsageError(
            f"--inject user-site: this environment has no {LEAKED} that could be loaded from a home instead"
        )


@contextlib.contextmanager
def of_rank(options: Options, rank: int) -> Iterator[None]:
    """The faults of this rank, for as long as torch is imported and asked."""
    with contextlib.ExitStack() as stack:
        if options.fault("small-shm", rank):
            shrink_shared_memory()
        if options.fault("user-site", rank):
            stack.enter_context(user_site())
        if options.fault("shadow-nccl", rank):
            stack.enter_context(shadowed_nccl())
        yield


def falsified(row: dict[str, Any], options: Options, rank: int) -> dict[str, Any]:
    """What this rank says of itself: the faults that cannot be real here are in its words."""
    said = dict(row)
    if options.fault("other-torch", rank):
        said["torch"] = OTHER_TORCH
    if options.fault("small-shm", rank) and said["shm_bytes"] != SMALL_SHM:
        # Not permitted to mount: as if this rank were in a container of its own.
        said.update(shm_bytes=SMALL_SHM, shm_free_bytes=SMALL_SHM, shm_device=-1)
    return said


def own_nccl() -> Path | None:
    folder = origins.torch_folder()
    found = (
        [path for path in libraries.own(folder) if libraries.stem(path) == "nccl"] if folder else []
    )
    return Path(found[0]) if found else None


@contextlib.contextmanager
def shadowed_nccl() -> Iterator[None]:
    """The same library from another place, loaded first: the dynamic linker takes it for the one that torch asks for."""
    source = own_nccl()
    assert source is not None, "check() refuses this"
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
    """A home with one package in it, before the environment's own, where `site` puts it."""
    source = _leaked_source()
    assert source is not None, "check() refuses this"
    with tempfile.TemporaryDirectory(prefix="provision-home-") as folder:
        site.USER_BASE, site.USER_SITE = folder, None
        packages = Path(site.getusersitepackages())
        packages.mkdir(parents=True)
        shutil.copyfile(source, packages / source.name)
        sys.modules.pop(LEAKED, None)
        sys.path.insert(_first_of_environment(), str(packages))
        yield


def shrink_shared_memory() -> bool:
    """A /dev/shm of Docker's size that only this thread and its children see; False where that is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        return False
    return not libc.mount(b"tmpfs", SHM, b"tmpfs", 0, f"size={SMALL_SHM}".encode())


def _leaked_source() -> Path | None:
    spec = find_spec(LEAKED)
    return Path(spec.origin) if spec and spec.origin else None


def _first_of_environment() -> int:
    """Where the site-packages begin on sys.path."""
    for place, entry in enumerate(sys.path):
        if os.path.basename(entry) in ("site-packages", "dist-packages"):
            return place
    return len(sys.path)
