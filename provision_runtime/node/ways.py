"""How this node can put an image to the path where jobs start. Looks only, and changes nothing."""

from __future__ import annotations

import os

from . import facts

KERNEL, FUSE, TREE = "kernel", "fuse", "tree"


def ways(pack_format: str) -> list[str]:
    """The ways that this node seems to have, the cheapest first. A mount may still be refused."""
    if pack_format == "tar":
        can_decompress = facts.which("zstd") or _has_libzstd()
        return [TREE] if facts.which("tar") and can_decompress else []
    possible = []
    mounting = facts.mounting()
    if mounting["may_mount"] and mounting["squashfs"] and not _has_own_mounts():
        possible.append(KERNEL)
    if mounting["fuse"] and fuse_command() and _can_unmount() and not _is_in_job():
        possible.append(FUSE)
    if facts.which("unsquashfs"):
        possible.append(TREE)
    return possible


def fuse_command() -> str | None:
    return facts.which("squashfuse_ll") or facts.which("squashfuse")


def _can_unmount() -> bool:
    """Root needs no helper; a user mounts and unmounts through fusermount."""
    is_root = os.geteuid() == 0
    return is_root or bool(facts.which("fusermount3") or facts.which("fusermount"))


def _is_in_job() -> bool:
    """A scheduler ends all processes of a job with it, also one that serves a mount."""
    return "SLURM_JOB_ID" in os.environ


def _has_own_mounts() -> bool:
    """Whether this is a job with mounts of its own (Slurm's job_container): nobody else would see
    ours."""
    if not _is_in_job():
        return False
    try:
        return os.readlink("/proc/self/ns/mnt") != os.readlink("/proc/1/ns/mnt")
    except OSError:
        return False


def _has_libzstd() -> bool:
    from . import zstd

    return zstd.load_library() is not None
