"""Each entry of a lock on its own, and against the others of its platform: hashes, files, channels, duplicates, what is served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.adapters.http import Availability
from provision.core.mirrors import without_login
from provision.lockfile.conda_lock_v1_contents import LockEntry, LockFile
from provision.lockfile.conda_lock_v1_writer import PYTHON_FROM
from provision.lockfile.verify.conda_names import is_python_package
from provision.lockfile.verify.model import Kind, LockFinding

# conda's `defaults` is several channels, wherever they are served.
DEFAULTS = re.compile(r"/pkgs/(main|r|msys2|free|pro)/")


def of_entry(entry: LockEntry, lock: LockFile) -> Iterator[LockFinding]:
    def finding(kind: Kind, message: str) -> LockFinding:
        return LockFinding(platform=entry.platform, package=entry.name, kind=kind, message=message)

    if not re.fullmatch(r"[0-9a-f]{64}", entry.sha256):
        yield finding(
            "hash",
            f"has {'no sha256' if not entry.sha256 else f'`{entry.sha256[:70]}`, which is no sha256'}",
        )
    if entry.md5 and not re.fullmatch(r"[0-9a-f]{32}", entry.md5):
        yield finding("hash", f"has `{entry.md5[:40]}`, which is no md5")
    if problem := _file_problem(entry):
        yield finding("file", problem)
    if entry.manager == "conda" and (problem := _channel_problem(entry, lock)):
        yield finding("channel", problem)


def _file_problem(entry: LockEntry) -> str | None:
    """Whether the address is that of another package than the entry names."""
    from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
    from packaging.version import InvalidVersion, Version

    filename = unquote(entry.filename)
    if entry.manager == "conda":
        subdir = entry.url.rsplit("/", 2)[-2] if entry.url.count("/") > 1 else ""
        if subdir not in (entry.platform, "noarch"):
            return f"is a file of {subdir or 'nowhere'}: {filename}"
        return (
            None
            if filename.startswith(f"{entry.name}-{entry.version}-")
            else f"{entry.version} names another file: {filename}"
        )
    if not filename.endswith(".whl"):
        return None
    try:
        name, version, _, _ = parse_wheel_filename(filename)
        same = name == canonicalize_name(entry.name) and version == Version(entry.version)
    except (InvalidWheelFilename, InvalidVersion):
        return f"{entry.version} names a file that is no wheel: {filename}"
    return None if same else f"{entry.version} names another file: {filename}"


def _channel_problem(entry: LockEntry, lock: LockFile) -> str | None:
    if entry.url.startswith("file:") and lock.custom.get(PYTHON_FROM) == "host":
        return None  # this machine's Python took the place of the channels; the lock's metadata says so
    url = without_login(entry.url)
    for channel in lock.channels:
        if channel == "defaults" and DEFAULTS.search(url):
            return None
        if url.startswith(without_login(conda.channel_url(channel))):
            return None
    place = without_login(entry.url).rsplit("/", 2)[0]
    return f"is from {place}, which is none of the lock's channels ({', '.join(map(without_login, lock.channels)) or 'it has none'})"


def twice(lock: LockFile) -> Iterator[LockFinding]:
    seen: dict[tuple[str, str, str], list[LockEntry]] = {}
    for entry in lock.entries:
        name = (
            entry.name if entry.manager == "conda" else canonicalize_name(entry.name)
        )  # conda has typing-extensions and typing_extensions
        seen.setdefault((entry.platform, entry.manager, name), []).append(entry)
    for (platform, _, _), entries in seen.items():
        files = sorted({entry.url for entry in entries})
        if len(files) > 1:
            yield LockFinding(
                platform=platform,
                package=entries[0].name,
                kind="twice",
                message=f"is locked {len(files)} times: {_files(files)}",
            )
        elif len({entry.category for entry in entries}) < len(entries):
            yield LockFinding(
                platform=platform, package=entries[0].name, kind="twice", message="is listed twice"
            )


def _files(urls: Iterable[str]) -> str:
    return ", ".join(unquote(url.rsplit("/", 1)[-1]) for url in urls)


def by_both(entries: Sequence[LockEntry]) -> Iterator[LockFinding]:
    """A Python package that conda and pip both have; a C library may have a wheel's name."""
    wheels = {canonicalize_name(entry.name): entry for entry in entries if entry.manager == "pip"}
    for entry in entries:
        if entry.manager == "conda" and is_python_package(entry):
            for name in (
                name
                for name in wheels
                if canonicalize_name(entry.name) in (name, "pytorch" if name == "torch" else name)
            ):
                message = f"is provided twice: conda's {entry.version} and the wheel {name} {wheels[name].version} write the same files"
                yield LockFinding(
                    platform=entry.platform, package=entry.name, kind="both", message=message
                )


def served(
    entries: Sequence[LockEntry], answers: Mapping[str, Availability]
) -> Iterator[LockFinding]:
    kinds: dict[str, tuple[Kind, str]] = {
        "gone": ("gone", "is no longer served"),
        "other": ("silent", "cannot be had"),
        "silent": ("silent", "could not be asked for"),
        "changed": ("changed", "is another file now"),
    }
    for entry in entries:
        answer = answers.get(entry.url)
        if answer is not None and answer.state in kinds:
            kind, words = kinds[answer.state]
            message = f"{words}: {without_login(entry.url)} ({answer.detail})"
            yield LockFinding(
                platform=entry.platform, package=entry.name, kind=kind, message=message
            )
