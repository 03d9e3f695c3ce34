"""Checks a lock's entries: hashes, files, channels, duplicates, servers.

Also the model of all findings, and conda's names for Python packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.core.dataclass import frozen
from provision.core.package_names import url_filename
from provision.core.requirement_urls import is_commit
from provision.core.types import LockedPackage
from provision.lockfile.conda_lock_v1 import PYTHON_FROM, LockFile, hash_problems
from provision.lockfile.joint_solve import wheel_names

FindingKind = Literal[
    "dependency",
    "hash",
    "file",
    "channel",
    "twice",
    "both",
    "inputs",
]

# Forms of conda's name for a Python package: opencv -> py-opencv, msgpack ->
# msgpack-python.
CONDA_NAME_FORMS = ("{}", "py{}", "py-{}", "python-{}", "{}-python", "{}-py")
OTHER_CONDA_NAMES = {
    "torch": "pytorch",
    "opencv-python": "opencv",
    "tensorflow-cpu": "tensorflow",
}


@frozen
class LockFinding:
    """One thing that is wrong with a lock."""

    platform: str
    package: str
    kind: FindingKind
    message: str


def finding(entry: LockedPackage, kind: FindingKind, message: str) -> LockFinding:
    return LockFinding(platform=entry.platform, package=entry.name, kind=kind, message=message)


def conda_names(wheel: str) -> set[str]:
    """The names that conda may use for a Python package."""
    name = canonicalize_name(wheel)
    names = {form.format(name) for form in CONDA_NAME_FORMS}
    names.add(OTHER_CONDA_NAMES.get(name, name))
    return names


# How the platform tags of wheels end (PEP 425, PEP 600).
MACHINES = {
    "linux-64": "_x86_64",
    "linux-aarch64": "_aarch64",
    "osx-64": "_x86_64",
    "osx-arm64": "_arm64",
    "win-64": "amd64",
}
# conda's `defaults` is several channels, wherever they are served.
DEFAULTS = re.compile(r"/pkgs/(main|r|msys2|free|pro)/")


def entry_findings(entry: LockedPackage, lock: LockFile) -> Iterator[LockFinding]:
    """Malformed hashes, and URLs that do not fit the entry or the lock's channels."""
    for hash_problem in hash_problems(entry):
        yield finding(entry, "hash", hash_problem)
    if entry.manager == "pip" and (is_commit(entry.url) or entry.is_editable):
        return  # there is no file
    is_conda = entry.manager == "conda"
    if problem := _conda_file_problem(entry) if is_conda else _wheel_file_problem(entry):
        yield finding(entry, "file", problem)
    if is_conda and (problem := _channel_problem(entry, lock)):
        yield finding(entry, "channel", problem)


def credential_findings(lock: LockFile) -> Iterator[LockFinding]:
    """Whoever may read the lock may use them."""
    message = "has an address with a password or token in it"
    for platform, package in lock.credentials:
        yield LockFinding(platform=platform, package=package, kind="file", message=message)


def _conda_file_problem(entry: LockedPackage) -> str | None:
    filename = unquote(entry.filename)
    subdir = entry.url.rsplit("/", 2)[-2] if entry.url.count("/") > 1 else ""
    if subdir not in (entry.platform, "noarch"):
        return f"is a file of {subdir or 'no platform'}: {filename}"
    if not filename.startswith(f"{entry.name}-{entry.version}-"):
        return f"{entry.version} names another file: {filename}"
    return None


def _wheel_file_problem(entry: LockedPackage) -> str | None:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename
    from packaging.version import InvalidVersion, Version

    filename = unquote(entry.filename)
    try:
        plain = filename.removesuffix(f"-{entry.build}.whl")
        name, version, _, tags = parse_wheel_filename(f"{plain.removesuffix('.whl')}.whl")
        is_same = name == canonicalize_name(entry.name) and version == Version(entry.version)
    except (InvalidWheelFilename, InvalidVersion):
        return f"{entry.version} names a file that is not a wheel: {filename or entry.url}"
    if not is_same:
        return f"{entry.version} names another file: {filename}"
    machine = MACHINES.get(entry.platform)
    platforms = {tag.platform for tag in tags}
    if machine is None or "any" in platforms or any(text.endswith(machine) for text in platforms):
        return None
    return f"{entry.version} is a wheel for {', '.join(sorted(platforms))}: {filename}"


def _channel_problem(entry: LockedPackage, lock: LockFile) -> str | None:
    if entry.url.startswith("file:") and lock.custom_metadata.get(PYTHON_FROM) == "host":
        return None  # this machine's Python replaced the channels; the lock's metadata says so
    url = entry.url
    for channel in lock.channels:
        if channel == "defaults" and DEFAULTS.search(url):
            return None
        if url.startswith(conda.channel_url(channel)):
            return None
    channels = ", ".join(lock.channels)
    folder = url.rsplit("/", 2)[0]
    return (
        f"is from {folder}, which is not one of the lock's channels ({channels or 'it has none'})"
    )


def duplicate_findings(lock: LockFile) -> Iterator[LockFinding]:
    """Packages that are locked twice for one manager."""
    same: dict[tuple[str, str, str], list[LockedPackage]] = {}
    for entry in lock.entries:
        name = entry.name  # conda has typing-extensions and typing_extensions
        if entry.manager == "pip":
            name = canonicalize_name(name)
        same.setdefault((entry.platform, entry.manager, name), []).append(entry)
    for entries in same.values():
        urls = sorted({entry.url for entry in entries})
        if len(urls) > 1:
            filenames = ", ".join(unquote(url_filename(url)) for url in urls)
            yield finding(entries[0], "twice", f"is locked {len(urls)} times: {filenames}")
        elif len({entry.category for entry in entries}) < len(entries):
            yield finding(entries[0], "twice", "is listed twice")


def two_manager_findings(entries: Sequence[LockedPackage]) -> Iterator[LockFinding]:
    """Python packages that are locked both from conda and as wheels.

    A C library with a wheel's name does not count.
    """
    wheels = {}
    for entry in entries:
        if entry.manager == "pip":
            wheels[canonicalize_name(entry.name)] = entry
    for entry in entries:
        if entry.manager != "conda" or not entry.is_for_python:
            continue
        names = wheel_names(canonicalize_name(entry.name))
        for name in sorted(names & wheels.keys()):
            wheel = f"{name} {wheels[canonicalize_name(name)].version}"
            yield finding(
                entry,
                "both",
                f"is provided twice: conda's {entry.version} and the wheel {wheel} write the same "
                "files",
            )
