"""Turns what all ranks observed in the target folder into findings. Pure: every rank gets the same.

An observation is the dictionary that `filesystem.FolderProbe.observation` makes on one rank.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from ...fs import mounts
from ...report import model
from ...report.text import format_bytes
from .. import measurement
from ..outcome import Finding, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Observations = Sequence[dict[str, Any]]

# Which finding an error of the target folder is: the phase checkpoint uses the same ids.
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GONE = (errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN, errno.ESHUTDOWN)
# After any of these findings the folder is unusable, and later checks in it would prove nothing.
FATAL = ("folder-unwritable", "disk-full", "folder-unmounted", "folder-not-shared", "folder-error")
# An operation on a small file that takes longer than this is reported as slow.
SLOW_S = 5.0
# With less than this, a job's first checkpoint or its logs would fill the folder.
LOW_BYTES = 1 << 30
LOW_INODES = 1000

LOCK_KINDS = ("flock", "fcntl")
# How long a lock call may take.
LOCK_LIMIT_S = 5.0
LOCKED, REFUSED, NO_ANSWER = "got it", "refused", "no answer"


def judge(target: str, observations: Observations) -> Outcome:
    findings = [
        *_system_errors(observations),
        *_not_shared(target, observations),
        *_torn_reads(target, observations),
        *_makedirs_races(target, observations),
        *_broken_locks(target, observations),
        *_slow_operations(target, observations),
        *_low_space(target, observations),
    ]
    broken = any(finding.id in FATAL for finding in findings)
    data = _report_data(target, observations)
    return Outcome(_summary(target, data), tuple(findings), data, broken)


def finding_id(number: int | None) -> str:
    """The finding for an errno."""
    if number in UNWRITABLE:
        return "folder-unwritable"
    if number in FULL:
        return "disk-full"
    if number in GONE:
        return "folder-unmounted"
    return "folder-error"


def describe_error(operation: str, folder: object, error: OSError) -> str:
    """The same text on every rank, so that equal findings merge: names the folder, not the file
    of one rank."""
    return f"{operation} in {folder}: {error.strerror or error}"


def largest_consistent_group(visible_by_rank: Sequence[Sequence[int]]) -> list[int]:
    """The largest group of ranks that all see the same ranks' files, including their own.

    Of two groups of equal size, the one with the lowest rank.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, visible_ranks in enumerate(visible_by_rank):
        if rank in visible_ranks:
            groups.setdefault(tuple(sorted(visible_ranks)), []).append(rank)
    return max(groups.values(), key=len, default=[])


def lock_problem(results: dict[str, str]) -> str | None:
    """What is wrong with one kind of lock, or None.

    `results` has the result of each attempt: `held` (the holder), `second` (the peer while the
    holder has the lock) and `after` (the peer after the holder released it).
    """
    for attempt in ("held", "second", "after"):
        result = results.get(attempt)
        if result == NO_ANSWER:
            return f"did not return within {LOCK_LIMIT_S:g} s"
        if result not in (LOCKED, REFUSED, None):
            return f"is not supported: {result}"
    if results.get("held") == LOCKED and results.get("second") == LOCKED:
        return "protects nothing: a second rank got the lock while the first held it"
    if results.get("after") == REFUSED:
        return "is not released: a second rank was refused after the first had released it"
    return None


def _system_errors(observations: Observations) -> Iterator[Finding]:
    """One finding per kind of error: a full disk may hit each rank at a different step."""
    messages: dict[str, str] = {}
    ranks: dict[str, list[int]] = {}
    for rank, observation in enumerate(observations):
        for finding_id, message in observation["problems"]:
            messages.setdefault(finding_id, message)
            ranks.setdefault(finding_id, []).append(rank)
    for finding_id, message in messages.items():
        yield Finding(finding_id, message, tuple(ranks[finding_id]))


def _not_shared(target: str, observations: Observations) -> Iterator[Finding]:
    """Ranks that could write, but do not see what the other ranks wrote."""
    working = [rank for rank, observation in enumerate(observations) if not observation["problems"]]
    visible_by_rank = [
        [int(rank) for rank in observation["visible_s"]] for observation in observations
    ]
    sharing = [rank for rank in largest_consistent_group(visible_by_rank) if rank in working]
    isolated = [rank for rank in working if rank not in sharing]
    if not isolated:
        return
    if not sharing:
        message = f"files that were just written in {target} cannot be read back"
        yield Finding("folder-error", message, tuple(isolated))
        return
    first_isolated, first_sharing = observations[isolated[0]], observations[sharing[0]]
    is_sharing_deeper = _mount_depth(first_sharing) >= _mount_depth(first_isolated)
    if len(isolated) == len(sharing) and not is_sharing_deeper:
        # Of two groups of equal size, the one whose mount point is further up lacks the mount.
        sharing, isolated = isolated, sharing
        first_sharing, first_isolated = first_isolated, first_sharing
    # Within a host, two devices behind one name are two mounts. Between hosts, the mount is missing
    # on the host where the name leads to a file system that is mounted further up.
    if first_isolated["host"] == first_sharing["host"]:
        is_unmounted = _location(first_isolated).device != _location(first_sharing).device
    else:
        is_unmounted = _mount_depth(first_isolated) < _mount_depth(first_sharing)
    finding_id = "folder-unmounted" if is_unmounted else "folder-not-shared"
    message = (
        f"files of the other ranks do not appear in {target}: it is {_location(first_isolated)}, "
        f"but {_location(first_sharing)} on rank {sharing[0]}"
    )
    yield Finding(finding_id, message, tuple(isolated))


def _location(observation: dict[str, Any]) -> mounts.Location:
    if not observation["location"]:
        return mounts.Location(0, None)
    return mounts.from_json(observation["location"])


def _mount_depth(observation: dict[str, Any]) -> int:
    mount = _location(observation).mount
    return len(mount.point.rstrip("/")) if mount else 0


def _torn_reads(target: str, observations: Observations) -> Iterator[Finding]:
    torn = {}
    for rank, observation in enumerate(observations):
        reads = observation.get("reads")
        if reads and reads["torn"]:
            torn[rank] = reads["torn"]
    if torn:
        problem = next(iter(torn.values()))
        message = f"a file in {target} was replaced by a rename, and a reader saw {problem}"
        yield Finding("rename-not-atomic", message, tuple(torn))


def _makedirs_races(target: str, observations: Observations) -> Iterator[Finding]:
    ranks = [rank for rank, observation in enumerate(observations) if observation["races"]]
    if ranks:
        message = (
            f"makedirs with exist_ok failed in {target} while other ranks created the same folders"
        )
        yield Finding("makedirs-unsafe", message, tuple(ranks))


def _broken_locks(target: str, observations: Observations) -> Iterator[Finding]:
    pair = [observation["locks"] for observation in observations if observation.get("locks")]
    for kind, results in _lock_results(observations).items():
        problem = lock_problem(results)
        if problem:
            ranks = {pair[0]["holder"], pair[0]["peer"]}
            message = f"{kind} in {target} {problem}"
            yield Finding("locks-unsupported", message, tuple(sorted(ranks)))


def _lock_results(observations: Observations) -> dict[str, dict[str, str]]:
    """For each kind of lock, the results of holder and peer together."""
    merged: dict[str, dict[str, str]] = {kind: {} for kind in LOCK_KINDS}
    for observation in observations:
        if observation.get("locks"):
            for kind, results in observation["locks"]["results"].items():
                merged[kind].update(results)
    return merged


def _slow_operations(target: str, observations: Observations) -> Iterator[Finding]:
    """A slow write is a fault at the writer. If a file appears late, the fault may be at either side;
    the reader is named."""
    write_s: dict[int, float] = {}
    visible_s: dict[int, float] = {}
    for rank, observation in enumerate(observations):
        if observation.get("sync_s") is not None:
            write_s[rank] = observation["sync_s"]
        if observation["visible_s"]:
            visible_s[rank] = max(observation["visible_s"].values())
    for operation, seconds in (
        ("a durable write of 64 KiB took", write_s),
        ("a new file became visible after", visible_s),
    ):
        slow_ranks = [rank for rank in seconds if seconds[rank] > SLOW_S]
        if slow_ranks:
            worst, median = max(seconds.values()), measurement.median(list(seconds.values()))
            message = f"{operation} {worst:.1f} s in {target} (median of all ranks {median:.3f} s)"
            yield Finding("folder-slow", message, tuple(slow_ranks))


def _low_space(target: str, observations: Observations) -> Iterator[Finding]:
    for observation in observations:
        if any(finding_id == "disk-full" for finding_id, _ in observation["problems"]):
            return
    for key, limit in (("free_bytes", LOW_BYTES), ("free_inodes", LOW_INODES)):
        low = {}
        for rank, observation in enumerate(observations):
            free = observation["space"][key] if observation.get("space") else None
            if free is not None and free < limit:
                low[rank] = free
        if low:
            least = min(low.values())
            if key == "free_bytes":
                amount = format_bytes(least)
            else:
                amount = f"{least} inodes"
            yield Finding("space-low", f"only {amount} are left in {target}", tuple(low))


def _report_data(target: str, observations: Observations) -> dict[str, Any]:
    first = observations[0]
    mount = first["location"] and first["location"]["mount"]
    mount_by_rank: dict[str, str] = {}
    hosts = set()
    for rank, observation in enumerate(observations):
        if observation["host"] not in hosts:
            hosts.add(observation["host"])
            mount_by_rank[str(rank)] = str(_location(observation))
    visible_s: list[float] = []
    sync_s: list[float] = []
    reads = {}
    for rank, observation in enumerate(observations):
        visible_s.extend(observation["visible_s"].values())
        if observation.get("sync_s") is not None:
            sync_s.append(observation["sync_s"])
        if observation.get("reads"):
            reads[str(rank)] = observation["reads"]
    return {
        "folder": target,
        "mounts": mount_by_rank,
        "options": mount and mount["options"],
        "visible_s": _median_and_max(visible_s),
        "sync_s": _median_and_max(sync_s),
        "reads": reads,
        "locks": _lock_data(observations),
        "races": sum(observation["races"] for observation in observations),
        "space": first.get("space"),
        "hard_link": first.get("hard_link"),
    }


def _median_and_max(values: Sequence[float]) -> dict[str, float] | None:
    return {"median": measurement.median(values), "max": max(values)} if values else None


def _lock_data(observations: Observations) -> dict[str, str] | None:
    """None if locks were not tried: a single rank has no other rank to lock out."""
    if not any(observation.get("locks") for observation in observations):
        return None
    data = {}
    for kind, results in _lock_results(observations).items():
        data[kind] = lock_problem(results) or model.PASS
    return data


def _summary(target: str, data: dict[str, Any]) -> str:
    parts = []
    if data["visible_s"]:
        parts.append(f"a new file is visible within {data['visible_s']['max']:.2f} s")
    if data["sync_s"]:
        parts.append(f"a durable write takes {data['sync_s']['max']:.3f} s")
    if data["space"] and data["space"]["free_bytes"] is not None:
        parts.append(f"{format_bytes(data['space']['free_bytes'])} free")
    return f"{', '.join(parts)} in {target}"
