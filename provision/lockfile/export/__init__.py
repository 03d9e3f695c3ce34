"""A lock in the formats of other tools: conda's explicit list, pip's requirements, pylock.toml (PEP
751), CycloneDX and SPDX.

The same lock gives the same bytes: no time is in them unless SOURCE_DATE_EPOCH gives one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from provision.core import sbom
from provision.core.errors import InvalidSpec
from provision.core.types import PLATFORM, Manager
from provision.lockfile.conda_lock_v1 import LockEntry, LockFile
from provision.lockfile.export import formats
from provision.lockfile.export.formats import lock_sbom, sbom_parts

ExportFormat = Literal["explicit", "requirements", "pylock", "cyclonedx", "spdx"]
FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)

MAX_NAMED = 5  # omitted packages that a note names

__all__ = [
    "FORMATS",
    "ExportFormat",
    "export_lock",
    "export_platform",
    "main_entries",
    "omitted_entries",
    "sbom_parts",
]

# The manager whose packages a format's readers do not install.
OMITTED_MANAGER: Mapping[ExportFormat, Manager] = {
    "requirements": "conda",
    "pylock": "conda",
    "explicit": "pip",
}
OMISSION_NOTES: Mapping[Manager, str] = {
    "conda": "left out, since pip and uv install no conda packages",
    "pip": "only `# pip` lines, which conda itself does not read (micromamba and conda-lock do)",
}
OTHER_FORMAT: Mapping[Manager, str] = {
    "conda": "--format explicit is for conda packages",
    "pip": "--format requirements or pylock is for wheels",
}


def export_platform(lock: LockFile, platform: str | None) -> str:
    """The platform to export: the given one, else the lock's only one, else linux-64.

    Raises InvalidSpec, with the lock's platforms, for one that is not locked.
    """
    locked = sorted({entry.platform for entry in lock.entries} | set(lock.platforms))
    if platform is None and len(locked) == 1:
        return locked[0]
    platform = platform or PLATFORM
    if platform not in locked:
        raise InvalidSpec(
            f"{lock.path} is not locked for {platform}.",
            advice=f"--platform takes: {', '.join(locked) or 'none'}.",
        )
    return platform


def main_entries(lock: LockFile, platform: str) -> tuple[LockEntry, ...]:
    """The packages of an environment: conda-lock's other categories (dev, extras) are installed
    only on request.
    """
    return tuple(entry for entry in lock.for_platform(platform) if entry.category == "main")


def omitted_entries(
    lock: LockFile, kind: ExportFormat, platform: str
) -> tuple[list[LockEntry], list[str]]:
    """The packages of a platform that readers of a format do not get, and notes that say so."""
    entries = main_entries(lock, platform)
    notes = []
    omitted: list[LockEntry] = []
    manager = OMITTED_MANAGER.get(kind)
    if manager is not None:
        omitted = [entry for entry in entries if entry.manager == manager]
        if omitted:
            notes.append(f"{OMISSION_NOTES[manager]}: {_listed(omitted)}")
        if omitted and len(omitted) == len(entries):
            notes.append(
                f"nothing else is locked, so the file installs nothing: {OTHER_FORMAT[manager]}"
            )
    others = [entry for entry in lock.for_platform(platform) if entry.category != "main"]
    if others:
        categories = ", ".join(sorted({entry.category for entry in others}))
        notes.append(f"left out, as of another category ({categories}): {_listed(others)}")
    return [*omitted, *others], notes


def _listed(entries: Sequence[LockEntry]) -> str:
    text = ", ".join(f"{entry.name} {entry.version}" for entry in entries[:MAX_NAMED])
    if len(entries) > MAX_NAMED:
        text += f" and {len(entries) - MAX_NAMED} more"
    return text


def export_lock(
    lock: LockFile,
    name: str,
    kind: ExportFormat,
    platform: str,
    *,
    licenses: Mapping[str, str] | None = None,
    epoch: int | None = None,
) -> str:
    """The lock's text in another format.

    licenses: by URL, as the packages themselves say, where known. epoch: SOURCE_DATE_EPOCH, if it
    is set. Raises IntegrityError for a lock that the format's own tools refuse.
    """
    entries = main_entries(lock, platform)
    if kind == "explicit":
        return formats.explicit(lock, platform)
    if kind == "requirements":
        return formats.requirements(lock, entries, name, platform)
    if kind == "pylock":
        return formats.pylock(lock, entries, platform)
    try:
        bill = lock_sbom(name, platform, lock.sha256, entries, licenses or {}, epoch)
        return sbom.sbom_text(bill, kind)
    except ValueError as error:
        raise formats.refusal(lock, kind, error) from error
