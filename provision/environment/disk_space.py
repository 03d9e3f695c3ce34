"""Is there room for what an environment downloads and unpacks? Asked before the first byte.

A lock has no sizes, so servers are asked for them, and only if a disk has little room. What they say
is the least that is needed: unpacked, packages are larger. Images know the sizes of their layers:
see image/layer_build.py and image/docker.py.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.adapters import uv
from provision.adapters.http import HttpClient, in_parallel
from provision.core import system_errors
from provision.core.errors import NoSpace, Unreachable
from provision.core.mirrors import Mirrors, path_from_url
from provision.core.package_names import archive_stem
from provision.core.paths import nearest_existing
from provision.core.types import Lock, LockedPackage, Progress
from provision_runtime.report.text import format_bytes

# With more room than this nothing is asked. The largest environment that we have measured has 5.4 GB
# installed, in 148 packages of 37 MB on average; a build unpacks into uv's cache and, on another
# disk, copies. A lock of more packages may need more room.
AMPLE = 20 << 30
AMPLE_PER_PACKAGE = 140 << 20


def check(lock: Lock, path: Path, conda_cache: Path, mirrors: Mirrors, progress: Progress) -> None:
    """Raise NoSpace if the packages of a lock certainly do not fit on the disks of the caches and
    of a prefix at `path`, whose parent exists."""
    uv_cache = uv.cache_folder()
    places = (path.parent, nearest_existing(uv_cache), nearest_existing(conda_cache))
    ample = max(AMPLE, AMPLE_PER_PACKAGE * len(lock.packages))
    if all(shutil.disk_usage(place).free >= ample for place in places):
        return
    writes = _writes(lock, uv_cache, conda_cache, path.parent, mirrors)
    if not any(writes.values()):
        return
    progress.say("asking for the sizes of packages: a disk has little room")
    by_url = {package.url: package for packages in writes.values() for package in packages}
    sizes = _sizes(list(by_url.values()), mirrors)
    for place, size in _by_disk(writes, sizes).items():
        free = shutil.disk_usage(place).free
        if free < size:
            raise NoSpace(
                f"The packages need at least {format_bytes(size)} in {place}, where "
                f"{format_bytes(free)} are free.",
                advice="Free space there, or move the folder to another disk: UV_CACHE_DIR for uv's "
                "cache, PROVISION_CACHE for conda packages, PROVISION_DATA for environments. "
                "Nothing was downloaded.",
            )


def _writes(
    lock: Lock, uv_cache: Path, conda_cache: Path, target: Path, mirrors: Mirrors
) -> dict[Path, list[LockedPackage]]:
    """The packages that are written to each folder: what a cache lacks, and what is copied because
    links need one disk."""
    python = lock.find("python")
    version = python.version if python else platform.python_version()
    wheels = [package for package in lock.by("pip") if not package.is_source]
    conda_packages = list(lock.by("conda"))
    missing_wheels = [wheel for wheel in wheels if not uv.is_cached(wheel, version, mirrors)]
    missing_conda = []
    for package in conda_packages:
        if not (conda_cache / archive_stem(package.filename)).exists():
            missing_conda.append(package)
    copied = []
    for cache, packages in ((uv_cache, wheels), (conda_cache, conda_packages)):
        if _device(cache) != _device(target):
            copied += packages
    return {uv_cache: missing_wheels, conda_cache: missing_conda, target: copied}


def _by_disk(
    writes: Mapping[Path, Sequence[LockedPackage]], sizes: Mapping[str, int]
) -> dict[Path, int]:
    """The bytes that each disk gets, by the first of its folders."""
    places: dict[int, Path] = {}
    needed: dict[Path, int] = {}
    for folder, packages in writes.items():
        place = places.setdefault(_device(folder), nearest_existing(folder))
        size = sum(sizes[package.url] for package in packages)
        needed[place] = needed.get(place, 0) + size
    return needed


def free_space(places: Mapping[str, Path]) -> str:
    """How much is free on each of these disks, for the message of a full one."""
    texts = []
    devices = set()
    for what, path in places.items():
        place = nearest_existing(path)
        device = place.stat().st_dev
        if device in devices:
            continue
        devices.add(device)
        texts.append(f"{system_errors.free_space(place)} in {place} ({what})")
    return "Free now: " + "; ".join(texts) + "."


def _device(path: Path) -> int:
    return nearest_existing(path).stat().st_dev


def _sizes(packages: Sequence[LockedPackage], mirrors: Mirrors) -> dict[str, int]:
    """Bytes of each package by its address; 0 if its server does not say."""
    with HttpClient(uv.pip_settings()) as web:

        def size(package: LockedPackage) -> int:
            url = mirrors.actual_url(package.url, package.sha256)
            try:
                if url.startswith("file:"):
                    return path_from_url(url).stat().st_size
                return web.byte_range(url, 0, 1)[1]
            except (Unreachable, OSError):
                return 0

        return {package.url: size for package, size in in_parallel(size, packages)}
