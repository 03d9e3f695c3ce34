"""Turns what all ranks observed in the target folder into findings. Pure: every rank gets the same."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...fs import mounts
from ...report import model
from ..outcome import Finding, Outcome, grouped, merge_equal

if TYPE_CHECKING:
    Observations = Sequence["FolderObservation"]

# Which finding an error of the target folder is: the phase checkpoint uses the same ids.
ERRORS = {
    "folder-unwritable": (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR),
    "disk-full": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "folder-unmounted": (
        *(errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO),
        *(errno.EHOSTDOWN, errno.ESHUTDOWN),
    ),
}
# After any of these findings the folder is unusable, and later checks in it would prove nothing.
FATAL = (*ERRORS, "folder-not-shared", "folder-error")
LOCKED, REFUSED = "locked", "refused"


@dataclass
class FolderObservation:
    """What one rank observed. location: of the target, as JSON. problems and warnings: [finding id,
    message]; a rank with a problem no longer touches the folder. visible_s: by rank, when its file
    appeared. locks: for each kind, what the rank got that took it, or the one that tried while it
    was held."""

    host: str
    location: dict[str, Any] | None = None
    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    visible_s: dict[str, float] = field(default_factory=dict)
    locks: dict[str, str] | None = None
    sync_s: float | None = None

    @property
    def located(self) -> mounts.MountLocation:
        if self.location is None:
            return mounts.MountLocation(0, None)
        return mounts.from_json(self.location)

    @property
    def mount_depth(self) -> int:
        mount = self.located.mount
        return len(mount.point.rstrip("/")) if mount else 0


def judge(target: str, observations: Observations) -> Outcome:
    errors, warnings, locking = [], [], []
    for rank, observation in enumerate(observations):
        errors += [Finding(name, message, (rank,)) for name, message in observation.problems]
        warnings += [Finding(name, message, (rank,)) for name, message in observation.warnings]
        locking += [rank] if observation.locks else []
    findings = [*merge_equal(errors, by_id=True), *_not_shared(target, observations)]
    # None if locks were not tried: a single rank has no other rank to lock out.
    locks = None
    if len(locking) == 2:
        first, second = (observations[rank].locks or {} for rank in locking)
        locks = {kind: lock_problem(first[kind], second[kind]) or model.PASS for kind in first}
        for kind, problem in locks.items():
            if problem != model.PASS:
                message = f"{kind} in {target} {problem}"
                findings.append(Finding("locks-unsupported", message, tuple(locking)))
    findings += merge_equal(warnings, by_id=True)
    visible_s = [value for item in observations for value in item.visible_s.values()]
    sync_s = [item.sync_s for item in observations if item.sync_s is not None]
    mount = observations[0].located.mount
    data = {
        "folder": target,
        "mounts": {str(rank): str(item.located) for rank, item in enumerate(observations)},
        "options": mount and mount.options,
        "locks": locks,
    }
    parts = []
    if visible_s:
        parts.append(f"a new file is visible within {max(visible_s):.2f} s")
    if sync_s:
        parts.append(f"a durable write takes {max(sync_s):.3f} s")
    broken = any(finding.id in FATAL for finding in findings)
    return Outcome(f"{', '.join(parts)} in {target}", tuple(findings), data, broken)


def finding_id(number: int | None) -> str:
    for id, numbers in ERRORS.items():
        if number in numbers:
            return id
    return "folder-error"


def describe_error(operation: str, folder: object, error: OSError) -> str:
    """The same text on every rank, so that equal findings merge: names the folder, not the file
    of one rank."""
    return f"{operation} in {folder}: {error.strerror or error}"


def largest_consistent_group(visible_by_rank: Sequence[Collection[str]]) -> list[int]:
    """The largest group of ranks that all see the same ranks' files, including their own.

    Of two groups of equal size, the one with the lowest rank.
    """
    groups = grouped(
        (tuple(sorted(visible_ranks)), rank)
        for rank, visible_ranks in enumerate(visible_by_rank)
        if str(rank) in visible_ranks
    )
    return max(groups.values(), key=len, default=[])


def lock_problem(held: str, second: str) -> str | None:
    """What is wrong with one kind of lock, or None. held: what the first rank got; second: what
    another one got while the first held it."""
    for result in (held, second):
        if result not in (LOCKED, REFUSED):
            return f"is not supported: {result}"
    if held == second == LOCKED:
        return "protects nothing: a second rank got the lock while the first held it"
    return None


def _not_shared(target: str, observations: Observations) -> Iterator[Finding]:
    """Ranks that could write, but do not see what the other ranks wrote."""
    working = [rank for rank, observation in enumerate(observations) if not observation.problems]
    group = largest_consistent_group([observation.visible_s for observation in observations])
    sharing = [rank for rank in group if rank in working]
    isolated = [rank for rank in working if rank not in sharing]
    if isolated and not sharing:
        message = f"files that were just written in {target} cannot be read back"
        yield Finding("folder-error", message, tuple(isolated))
    if not isolated or not sharing:
        return
    if len(isolated) == len(sharing):
        # If two groups are equally large, the one whose mount point is further up lacks the mount.
        isolated, sharing = sorted(
            (sharing, isolated), key=lambda ranks: (observations[ranks[0]].mount_depth, -ranks[0])
        )
    first_isolated, first_sharing = observations[isolated[0]], observations[sharing[0]]
    # Within a host, two devices behind one name are two mounts. Between hosts, the mount is missing
    # on the host where the name leads to a file system that is mounted further up.
    if first_isolated.host == first_sharing.host:
        is_unmounted = first_isolated.located.device != first_sharing.located.device
    else:
        is_unmounted = first_isolated.mount_depth < first_sharing.mount_depth
    message = (
        f"files of the other ranks do not appear in {target}: it is {first_isolated.located}, "
        f"but {first_sharing.located} on rank {sharing[0]}"
    )
    finding_id = "folder-unmounted" if is_unmounted else "folder-not-shared"
    yield Finding(finding_id, message, tuple(isolated))
