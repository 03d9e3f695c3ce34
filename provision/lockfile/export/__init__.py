"""A lock in the formats of other tools: conda's explicit list, pip's requirements, pylock.toml (PEP 751), CycloneDX and SPDX.

The same lock gives the same bytes: there is no time in them unless SOURCE_DATE_EPOCH says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from provision.core import sbom
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.types import PLATFORM
from provision.lockfile.conda_lock_v1_contents import LockEntry, LockFile
from provision.lockfile.export import formats
from provision.lockfile.export.sbom_parts import bill, sbom_parts

ExportFormat = Literal["explicit", "requirements", "pylock", "cyclonedx", "spdx"]
FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)

SHOWN = 5  # of what is left out, by name

__all__ = [
    "FORMATS",
    "ExportFormat",
    "export_lock",
    "export_platform",
    "main_entries",
    "omitted_entries",
    "sbom_parts",
]


def export_platform(lock: LockFile, asked: str | None) -> str:
    """The platform to export. Raises InvalidSpec, with those that there are, for one that is not locked."""
    there = sorted({entry.platform for entry in lock.entries} | set(lock.platforms))
    if asked is None and len(there) == 1:
        return there[0]
    wanted = asked or PLATFORM
    if wanted not in there:
        raise InvalidSpec(
            f"{lock.path} is not locked for {wanted}.",
            advice=f"--platform takes: {', '.join(there) or 'none'}.",
        )
    return wanted


def main_entries(lock: LockFile, platform: str) -> tuple[LockEntry, ...]:
    """The packages of an environment: conda-lock's other categories (dev, extras) are installed only when asked for."""
    return tuple(entry for entry in lock.of(platform) if entry.category == "main")


def omitted_entries(
    lock: LockFile, kind: ExportFormat, platform: str
) -> tuple[list[LockEntry], list[str]]:
    """The packages of a platform that readers of a format do not get, and that in words."""
    chosen = main_entries(lock, platform)
    others = [entry for entry in lock.of(platform) if entry.category != "main"]
    missing = [entry for entry in chosen if kind in NO_PLACE and entry.manager == NO_PLACE[kind][0]]
    told = [f"{NO_PLACE[kind][1]}: {_listed(missing)}"] if missing else []
    if missing and len(missing) == len(chosen):
        told.append(f"that is all of it, so the file names nothing to install: {EMPTY[kind]}")
    if others:
        categories = ", ".join(sorted({entry.category for entry in others}))
        told.append(f"left out, as of another category ({categories}): {_listed(others)}")
    return [*missing, *others], told


# Of which manager a format's readers install nothing, and that in words.
NO_PLACE: Mapping[ExportFormat, tuple[str, str]] = {
    "requirements": ("conda", "left out, since pip and uv install no conda packages"),
    "pylock": ("conda", "left out, since pip and uv install no conda packages"),
    "explicit": (
        "pip",
        "only `# pip` lines, which conda itself does not read (micromamba and conda-lock do)",
    ),
}
EMPTY: Mapping[ExportFormat, str] = {
    "requirements": "--format explicit is for conda packages",
    "pylock": "--format explicit is for conda packages",
    "explicit": "--format requirements or pylock is for wheels",
}


def _listed(entries: Sequence[LockEntry]) -> str:
    shown = ", ".join(f"{entry.name} {entry.version}" for entry in entries[:SHOWN])
    return shown + (f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else "")


def export_lock(
    lock: LockFile,
    name: str,
    kind: ExportFormat,
    platform: str,
    *,
    licenses: Mapping[str, str] | None = None,
    epoch: int | None = None,
) -> str:
    """The text of the other format.

    licenses: by address, as the packages themselves say, where that is known. epoch: SOURCE_DATE_EPOCH, if it is set.
    """
    try:
        return _exported(lock, name, kind, platform, licenses or {}, epoch)
    except (
        ValueError,
        TypeError,
        LookupError,
        AssertionError,
    ) as error:  # what other tools' models raise for what they refuse
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise IntegrityError(
            f"{lock.path} cannot be written as {kind}: {reason}.",
            advice="`provision lock verify` lists what is wrong with the lock.",
        ) from error


def _exported(
    lock: LockFile,
    name: str,
    kind: ExportFormat,
    platform: str,
    licenses: Mapping[str, str],
    epoch: int | None,
) -> str:
    entries = main_entries(lock, platform)
    if kind == "explicit":
        return formats.explicit(lock, platform)
    if kind == "requirements":
        return formats.requirements(entries, name, platform)
    if kind == "pylock":
        return formats.pylock(entries, platform)
    return sbom.sbom_text(bill(name, platform, lock.sha256, entries, licenses, epoch), kind)
