"""The differences between two locks, for people: package by package, within each platform and
manager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from provision.adapters import conda
from provision.core.dataclass import frozen
from provision.core.types import LockedPackage, Manager
from provision.lockfile.conda_lock_v1 import AS_OF, SOURCES, LockFile

# up, down: another version. rebuilt: another build or file of the same version. re-sourced: the
# same file from another address.
Change = Literal["added", "removed", "up", "down", "rebuilt", "re-sourced"]


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
    """How the second of two locks differs from the first."""

    before: str
    after: str
    differences: tuple[PackageDifference, ...]
    # Differences in the locks' metadata: channels, platforms, the as-of date.
    about: tuple[str, ...]
    packages: int  # in either lock, counted once for each platform

    @property
    def same(self) -> bool:
        return not self.differences and not self.about


Key = tuple[str, Manager, str]


def diff_locks(before: LockFile, after: LockFile, names: tuple[str, str]) -> LockDiff:
    """All differences, by platform, manager and package."""
    old, new = _by_key(before), _by_key(after)
    keys = sorted(old.keys() | new.keys())
    differences = []
    for key in keys:
        difference = _difference(key, old.get(key), new.get(key))
        if difference is not None:
            differences.append(difference)
    return LockDiff(
        before=names[0],
        after=names[1],
        differences=tuple(differences),
        about=_metadata_differences(before, after),
        packages=len(keys),
    )


def _by_key(lock: LockFile) -> dict[Key, LockedPackage]:
    return {(entry.platform, entry.manager, entry.name): entry for entry in lock.entries}


def _difference(
    key: Key, old: LockedPackage | None, new: LockedPackage | None
) -> PackageDifference | None:
    before, after = (f"{one.version} {one.build}".strip() if one else "" for one in (old, new))
    change: Change = "rebuilt"
    if old is None:
        change = "added"
    elif new is None:
        change = "removed"
    elif old.version != new.version:
        change = "up" if _is_newer(new, old) else "down"
    elif before == after and (old.sha256, old.url) == (new.sha256, new.url):
        return None
    elif before == after:
        # What tells two files of one build apart: a commit has no hash.
        change = "re-sourced" if old.sha256 == new.sha256 else "rebuilt"
        before, after = (f"{one.url} {one.sha256[:8]}".strip() for one in (old, new))
    platform, manager, package = key
    return PackageDifference(
        platform=platform,
        manager=manager,
        package=package,
        change=change,
        before=before,
        after=after,
    )


def _is_newer(entry: LockedPackage, other: LockedPackage) -> bool:
    from packaging.version import InvalidVersion, Version

    if entry.manager == "conda":
        return conda.is_newer(entry.version, other.version)
    try:
        return Version(entry.version) > Version(other.version)
    except InvalidVersion:
        return entry.version > other.version


def _metadata_differences(before: LockFile, after: LockFile) -> tuple[str, ...]:
    rows: Sequence[tuple[str, Sequence[str], Sequence[str]]] = (
        ("channels", before.channels, after.channels),
        ("platforms", before.platforms, after.platforms),
        ("as of", _custom(before, AS_OF), _custom(after, AS_OF)),
        ("package sources", _custom(before, SOURCES), _custom(after, SOURCES)),
    )
    texts = []
    for title, old, new in rows:
        if tuple(old) != tuple(new):
            texts.append(f"{title}: {_listed(old)} -> {_listed(new)}")
    return tuple(texts)


def _custom(lock: LockFile, key: str) -> Sequence[str]:
    return lock.custom_metadata.get(key, "").splitlines()


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts) or "none"


def describe_diff(diff: LockDiff) -> list[str]:
    """What changed, in a table for each platform and manager, then the number of changes."""
    lines = list(diff.about)
    groups = dict.fromkeys((change.platform, change.manager) for change in diff.differences)
    for platform, manager in groups:
        rows = []
        for change in diff.differences:
            if (change.platform, change.manager) == (platform, manager):
                versions = change.before or change.after
                if change.before and change.after:
                    versions = f"{change.before} -> {change.after}"
                rows.append((change.change, change.package, versions))
        change_width = max(len(row[0]) for row in rows)
        package_width = max(len(row[1]) for row in rows)
        lines.append(f"{platform}, {manager}")
        for kind, package, versions in rows:
            lines.append(f"  {kind:{change_width}}  {package:{package_width}}  {versions}")
    return [*lines, _summary(diff)]


def _summary(diff: LockDiff) -> str:
    counts = Counter(change.change for change in diff.differences)
    if not counts:
        return f"no package differs: {diff.after} has the same {diff.packages} packages as {diff.before}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{len(diff.differences)} of {diff.packages} packages differ: {kinds}"
