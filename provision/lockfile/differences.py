"""What changed between two locks, for people: package by package, within each platform and manager."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from provision.adapters import conda
from provision.core.mirrors import without_login
from provision.core.types import Manager
from provision.lockfile.conda_lock_v1_contents import LockEntry, LockFile
from provision.lockfile.conda_lock_v1_writer import AS_OF

# up, down: another version. rebuilt: the same version as another build or file. re-sourced: the same file from another place.
Change = Literal["added", "removed", "up", "down", "rebuilt", "re-sourced"]


@dataclass(frozen=True, kw_only=True)
class PackageDifference:
    """One package that is not the same in both locks; what is absent is empty."""

    platform: str
    manager: Manager
    package: str
    change: Change
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class LockDiff:
    """Two locks, and how the second differs."""

    before: str
    after: str
    differences: tuple[PackageDifference, ...]
    about: tuple[
        str, ...
    ]  # what differs of the locks themselves: channels, platforms, the day as of which
    packages: int  # in either lock, counted for each platform

    @property
    def same(self) -> bool:
        return not self.differences and not self.about


def diff_locks(before: LockFile, after: LockFile, names: tuple[str, str]) -> LockDiff:
    """All differences, by platform, manager and package."""
    old, new = _by_key(before), _by_key(after)
    found = [
        _difference(key, old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys())
    ]
    differences = tuple(one for one in found if one is not None)
    return LockDiff(
        before=names[0],
        after=names[1],
        differences=differences,
        about=tuple(_about(before, after)),
        packages=len(found),
    )


Key = tuple[str, Manager, str]


def _by_key(lock: LockFile) -> dict[Key, LockEntry]:
    return {(entry.platform, entry.manager, entry.name): entry for entry in lock.entries}


def _difference(key: Key, old: LockEntry | None, new: LockEntry | None) -> PackageDifference | None:
    change, before, after = _change(old, new)
    if change is None:
        return None
    return PackageDifference(
        platform=key[0], manager=key[1], package=key[2], change=change, before=before, after=after
    )


def _change(old: LockEntry | None, new: LockEntry | None) -> tuple[Change | None, str, str]:
    if old is None or new is None:
        return ("added" if old is None else "removed"), _said(old), _said(new)
    if old.version != new.version:
        return ("up" if _newer(new, old) else "down"), _said(old), _said(new)
    if _build(old) != _build(new):
        return "rebuilt", _said(old), _said(new)
    if _hashes(old) != _hashes(new):
        return (
            "rebuilt",
            f"{_said(old)} sha256 {old.sha256[:8]}",
            f"{_said(new)} sha256 {new.sha256[:8]}",
        )
    if old.url != new.url:
        return "re-sourced", _place(old), _place(new)
    return None, "", ""


def _said(entry: LockEntry | None) -> str:
    return f"{entry.version} {_build(entry)}".strip() if entry else ""


def _build(entry: LockEntry) -> str:
    return entry.build_string if entry.manager == "conda" else ""


def _hashes(entry: LockEntry) -> str:
    return entry.sha256 or entry.md5


def _place(entry: LockEntry) -> str:
    return without_login(entry.url).rpartition("/")[0]


def _newer(one: LockEntry, other: LockEntry) -> bool:
    from packaging.version import InvalidVersion, Version

    if one.manager == "pip":
        try:
            return Version(one.version) > Version(other.version)
        except InvalidVersion:
            return one.version > other.version
    return conda.is_newer(one.version, other.version)


def _day(lock: LockFile) -> Sequence[str]:
    return [lock.custom[AS_OF]] if AS_OF in lock.custom else []


def _about(before: LockFile, after: LockFile) -> Iterator[str]:
    rows: Sequence[tuple[str, Sequence[str], Sequence[str]]] = (
        ("channels", before.channels, after.channels),
        ("platforms", before.platforms, after.platforms),
        ("as of", _day(before), _day(after)),
    )
    for what, old, new in rows:
        if tuple(old) != tuple(new):
            yield f"{what}: {', '.join(map(without_login, old)) or 'none'} -> {', '.join(map(without_login, new)) or 'none'}"
