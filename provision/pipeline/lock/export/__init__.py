"""A lock in the formats of other tools: conda's explicit list, pip's requirements, pylock.toml (PEP 751), CycloneDX and SPDX.

The same lock gives the same bytes: there is no time in them unless SOURCE_DATE_EPOCH says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from provision.errors import IntegrityError, InvalidSpec
from provision.model import PLATFORM
from provision.pipeline.lock.contents import Contents, Entry
from provision.pipeline.lock.export import bom, installers

Format = Literal["explicit", "requirements", "pylock", "cyclonedx", "spdx"]
FORMATS: tuple[Format, ...] = get_args(Format)

__all__ = ["FORMATS", "Format", "export", "platform_of", "selected"]


def platform_of(lock: Contents, asked: str | None) -> str:
    """The platform to export. Raises InvalidSpec, with those that there are, for one that is not locked."""
    there = sorted({entry.platform for entry in lock.entries} | set(lock.platforms))
    if asked is None and len(there) == 1:
        return there[0]
    wanted = asked or PLATFORM
    if wanted not in there:
        raise InvalidSpec(f"{lock.path} is not locked for {wanted}.", advice=f"--platform takes: {', '.join(there) or 'none'}.")
    return wanted


def selected(lock: Contents, platform: str) -> tuple[Entry, ...]:
    """The packages of an environment: conda-lock's other categories (dev, extras) are installed only when asked for."""
    return tuple(entry for entry in lock.of(platform) if entry.category == "main")


def export(
    lock: Contents, name: str, kind: Format, platform: str, *, licenses: Mapping[str, str] | None = None, epoch: int | None = None
) -> str:
    """The text of the other format.

    licenses: by address, as the packages themselves say, where that is known. epoch: SOURCE_DATE_EPOCH, if it is set.
    """
    try:
        return _exported(lock, name, kind, platform, licenses or {}, epoch)
    except (ValueError, TypeError, LookupError, AssertionError) as error:  # what other tools' models raise for what they refuse
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise IntegrityError(
            f"{lock.path} cannot be written as {kind}: {reason}.", advice="`provision lock verify` lists what is wrong with the lock."
        ) from error


def _exported(lock: Contents, name: str, kind: Format, platform: str, licenses: Mapping[str, str], epoch: int | None) -> str:
    entries = selected(lock, platform)
    if kind == "explicit":
        return installers.explicit(lock, platform)
    if kind == "requirements":
        return installers.requirements(entries, name, platform)
    if kind == "pylock":
        return installers.pylock(entries, platform)
    described = bom.Described(name=name, platform=platform, lock_sha256=lock.sha256, entries=entries, licenses=licenses, epoch=epoch)
    return bom.cyclonedx(described) if kind == "cyclonedx" else bom.spdx(described)
