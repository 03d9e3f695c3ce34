"""How this node can install an image where jobs start. Looks only, and changes nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .commands import read_text, which

KERNEL, FUSE, TREE = "kernel", "fuse", "tree"
ROOT = Path("/")
# <linux/capability.h>: the right to mount.
CAP_SYS_ADMIN = 21


def install_methods(pack_format: str = "squashfs") -> list[str]:
    """The methods that this node seems to have, the cheapest first. A mount may still be refused."""
    if pack_format == "tar":
        return [TREE] if which("tar") and which("gzip") else []
    methods = []
    if may_mount() and not _has_private_mounts():
        methods.append(KERNEL)
    if fuse_command() and os.access("/dev/fuse", os.R_OK | os.W_OK) and _can_unmount():
        methods.append(FUSE)
    if which("unsquashfs"):
        methods.append(TREE)
    return methods


def fuse_command() -> str | None:
    return which("squashfuse_ll") or which("squashfuse")


def may_mount(root: Path = ROOT) -> bool:
    status = read_text(root / "proc/self/status") or ""
    capabilities = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    return bool(capabilities and int(capabilities[1], 16) >> CAP_SYS_ADMIN & 1)


def _can_unmount() -> bool:
    """Root needs no helper; a user mounts and unmounts through fusermount. A scheduler ends all
    processes of a job with it, also one that serves a mount."""
    has_helper = os.geteuid() == 0 or which("fusermount3") or which("fusermount")
    return bool(has_helper) and "SLURM_JOB_ID" not in os.environ


def _has_private_mounts() -> bool:
    """Whether this is a job with mounts of its own (Slurm's job_container): nobody else would see
    ours."""
    if "SLURM_JOB_ID" not in os.environ:
        return False
    try:
        return os.readlink("/proc/self/ns/mnt") != os.readlink("/proc/1/ns/mnt")
    except OSError:
        return False
