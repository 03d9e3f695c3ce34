"""How this node can put an image to the path where jobs start. Looks only, and changes nothing."""

from __future__ import annotations

import os
import shutil

KERNEL, FUSE, TREE = "kernel", "fuse", "tree"


def ways(pack_format: str) -> list[str]:
    """The ways that this node seems to have, the cheapest first. Changes nothing, so a mount may
    still be refused."""
    possible = []
    if pack_format == "squashfs":
        if os.geteuid() == 0 and _kernel_has_squashfs() and not _has_own_mounts():
            possible.append(KERNEL)
        if fuse_command() and os.access("/dev/fuse", os.R_OK | os.W_OK) and not _in_job():
            possible.append(FUSE)
        if shutil.which("unsquashfs"):
            possible.append(TREE)
    elif shutil.which("tar") and (shutil.which("zstd") or _has_libzstd()):
        possible.append(TREE)
    return possible


def _kernel_has_squashfs() -> bool:
    """It is built in or loaded, or a module of this kernel."""
    with open("/proc/filesystems", encoding="ascii") as file:
        if "squashfs" in file.read().split():
            return True
    folder = f"/lib/modules/{os.uname().release}/kernel/fs/squashfs"
    return os.path.isdir(folder)


def _in_job() -> bool:
    """A scheduler ends all processes of a job with it, also one that serves a mount."""
    return "SLURM_JOB_ID" in os.environ


def _has_own_mounts() -> bool:
    """Whether this is a job with mounts of its own (Slurm's job_container): nobody else would see
    ours."""
    if not _in_job():
        return False
    try:
        return os.readlink("/proc/self/ns/mnt") != os.readlink("/proc/1/ns/mnt")
    except OSError:
        return False


def fuse_command() -> str | None:
    return shutil.which("squashfuse_ll") or shutil.which("squashfuse")


def _has_libzstd() -> bool:
    from . import zstd

    return zstd.load_library() is not None
