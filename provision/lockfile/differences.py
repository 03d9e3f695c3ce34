"""What changes from one lock to its successor, for people: package by package."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from provision.core.dataclass import frozen
from provision.core.types import LockedPackage, Manager
from provision.lockfile.conda_lock_v1 import LockFile

Change = Literal["added", "removed", "changed"]


@frozen
class PackageDifference:
    """One package that differs; `before` or `after` is empty if that lock lacks it."""

    platform: str
    manager: Manager
    package: str
    change: Change
    before: str
    after: str


@frozen
class LockDiff:
    """How a new lock differs from the one before it."""

    differences: tuple[PackageDifference, ...]
    packages: int  # in either lock, counted once for each platform

    @property
    def same(self) -> bool:
        return not self.differences


def diff_locks(old_lock: LockFile, new_lock: LockFile) -> LockDiff:
    """All differences, by platform, manager and package."""
    old, new = (
        {(entry.platform, entry.manager, entry.name): entry for entry in lock.entries}
        for lock in (old_lock, new_lock)
    )
    keys = sorted(old.keys() | new.keys())
    differences = []
    for key in keys:
        before, after = _described(old.get(key)), _described(new.get(key))
        if before == after:  # perhaps another file of the same build
            before, after = (f"{lock[key].url} {lock[key].sha256[:8]}" for lock in (old, new))
        if before != after:
            platform, manager, package = key
            change: Change = "changed"
            if not before:
                change = "added"
            elif not after:
                change = "removed"
            differences.append(
                PackageDifference(
                    platform=platform,
                    manager=manager,
                    package=package,
                    change=change,
                    before=before.strip(),
                    after=after.strip(),
                )
            )
    return LockDiff(differences=tuple(differences), packages=len(keys))


def _described(entry: LockedPackage | None) -> str:
    return f"{entry.version} {entry.build}".strip() if entry else ""


def describe_diff(diff: LockDiff) -> list[str]:
    """A line for each package, then the number of changes."""
    lines = []
    for row in diff.differences:
        versions = " -> ".join(filter(None, (row.before, row.after)))
        lines.append(f"{row.change:7}  {row.package} {versions} ({row.platform}, {row.manager})")
    counts = Counter(row.change for row in diff.differences)
    if not counts:
        return ["no package differs"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return [*lines, f"{len(lines)} of {diff.packages} packages differ: {kinds}"]
