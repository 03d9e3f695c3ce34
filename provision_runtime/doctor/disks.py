"""Probes: space and inodes where caches, temporary files and the home are; what holds the working
folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..fs import mounts
from ..fs.files import nearest_existing
from ..report.text import format_bytes
from .probe import Findings, Probes, observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .machine import Machine

# What one environment needs: a prefix of torch 2.3.1 for CUDA 12.1 with its byte code, as du(1)
# counts it.
ENVIRONMENT_BYTES = 5_500_000_000
ENVIRONMENT_INODES = 35_451
# Variables that move a cache, and where it is otherwise, below the home.
CACHES = (
    ("PIP_CACHE_DIR", ".cache/pip"),
    ("UV_CACHE_DIR", ".cache/uv"),
    ("CONDA_PKGS_DIRS", ".conda/pkgs"),
    ("RATTLER_CACHE_DIR", ".cache/rattler"),
    ("HF_HOME", ".cache/huggingface"),
    ("TORCH_HOME", ".cache/torch"),
    ("TRITON_CACHE_DIR", ".triton/cache"),
    ("XDG_CACHE_HOME", ".cache"),
    ("PROVISION_CACHE", ".cache/provision"),
    ("PROVISION_DATA", ".local/share/provision"),
)
# Object stores that are mounted as file systems, by the type in mountinfo.
OBJECT_STORES = (
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.goofys",
    "fuse.rclone",
    "fuse.mountpoint-s3",
    "fuse.geesefs",
    "fuse.blobfuse",
    "fuse.blobfuse2",
)


def space(machine: Machine) -> Findings:
    """Each file system once, under the first name that leads to it."""
    devices = set()
    for name, path in _folders(machine):
        existing = nearest_existing(machine.path(path))
        device, status = os.stat(existing).st_dev, os.statvfs(existing)
        # A pack, or a share of models, is read-only: nothing is written there.
        if device in devices or status.f_flag & os.ST_RDONLY:
            continue
        devices.add(device)
        free = status.f_bavail * status.f_frsize
        # File systems that make inodes as they need them report none at all.
        inodes = status.f_favail if status.f_files else None
        if (problem := shortage(free, inodes)) is not None:
            finding_id, text = problem
            yield observation(
                finding_id,
                f"{path} ({name}) has {text}",
                f"statvfs {existing}",
                f"{free} bytes, {inodes} inodes",
            )


def shortage(free: int, inodes: int | None) -> tuple[str, str] | None:
    if free <= 0:
        return "cache-full", "no space left"
    if inodes is not None and inodes <= 0:
        return "cache-full", "no inodes left"
    if free < ENVIRONMENT_BYTES:
        return "cache-space-low", f"{format_bytes(free)} left"
    if inodes is not None and inodes < ENVIRONMENT_INODES:
        return "cache-space-low", f"{inodes} inodes left"
    return None


def _folders(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "home", machine.home
    yield "temporary files", machine.variable("TMPDIR") or "/tmp"
    for variable, default in CACHES:
        value = machine.variable(variable)
        is_moved = os.path.isabs(value)
        folder = value if is_moved else os.path.join(machine.home, default)
        yield f"variable {variable}" if is_moved else "cache", folder
    if machine.prefix is not None:
        yield "environment", machine.prefix


def object_store(machine: Machine) -> Findings:
    """The working folder and that of scratch files; other mounts may only be read."""
    all_mounts = mounts.parse(machine.read("/proc/self/mountinfo"))
    for variable in ("PWD", "SCRATCH"):
        folder = machine.variable(variable)
        mount = mounts.mount_of(folder, all_mounts) if folder else None
        if mount is not None and mount.type in OBJECT_STORES:
            yield observation(
                "object-store-mount", f"{folder} is {mount}", "/proc/self/mountinfo", mount.type
            )
            return


PROBES: Probes = {
    "disks": space,
    "working folder": object_store,
}
