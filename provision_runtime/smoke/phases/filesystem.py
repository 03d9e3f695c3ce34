"""Phase filesystem: can training code rely on the target folder, on every rank and between ranks?

All ranks take every step. A rank whose folder failed no longer touches it, but still takes part in
every exchange. filesystem_findings turns what all ranks observed into findings.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ... import fs
from ...fs import mounts
from ...report.text import format_bytes
from .. import fault_injection
from ..context import RankContext
from ..outcome import Outcome
from . import filesystem_findings
from .filesystem_findings import LOCKED, REFUSED, FolderObservation, largest_consistent_group

T = TypeVar("T")

# How often all ranks make a folder at once.
MAKE_ROUNDS = 4
MAKE_ROUNDS_QUICK = 2
# What makedirs with exist_ok raises on file systems where two callers interfere
# (Lustre, NFS, FUSE).
RACE_ERRORS = (errno.EEXIST, errno.ENOENT, errno.ESTALE)
RACE_PAUSE_S = 1.0

# NFS clients cache "no such file" for up to a minute (acdirmax); listing the folder usually ends
# it.
VISIBLE_LIMIT_S = 30.0
VISIBLE_LIMIT_QUICK_S = 10.0
VISIBLE_POLL_S = 0.01
# An operation on a small file that takes longer than this is reported as slow. A busy machine may
# be slow once: a durable write is called slow only when every attempt is.
SLOW_S = 5.0
SLOW_ATTEMPTS = 2
DURABLE_BYTES = 64 << 10
# With less than this, a job's first checkpoint or its logs would fill the folder.
LOW_BYTES = 1 << 30
LOW_INODES = 1000

LOCKS = {"flock": fcntl.flock, "fcntl": fcntl.lockf}
LOCK_BUSY = (errno.EAGAIN, errno.EACCES)


def run(context: RankContext) -> Outcome:
    name = context.exchange("filesystem/name", f".provision-smoke-{secrets.token_hex(8)}")[0]
    target = context.options.folder
    observation = FolderObservation(context.env.host)
    probe = FolderProbe(context, target, target / name, observation)
    context.temporary_folders.append(probe.root)
    try:
        _make_folders(probe)
        sharing_ranks = _await_files(probe)
        if len(sharing_ranks) > 1:
            _try_locks(probe, sharing_ranks)
        observation.sync_s = probe.attempt(
            "writing a file durably", lambda: _durable_write_s(probe)
        )
        probe.attempt("asking for the free space", lambda: _warn_of_low_space(probe))
        probe.check_moved()
        documents = context.exchange("filesystem/observations", asdict(observation))
    finally:
        context.remove_temporary_folders()
    context.exchange("filesystem/cleared", None)
    observations = [FolderObservation(**document) for document in documents]
    return filesystem_findings.judge(str(target), observations)


@dataclass
class FolderProbe:
    """One rank's checks of the target folder, and whether it can continue."""

    context: RankContext
    target: Path
    # The folder that this phase makes in the target, and deletes again.
    root: Path
    observation: FolderObservation
    able: bool = True

    def attempt(self, operation: str, action: Callable[[], T]) -> T | None:
        """What `action` returns. After an OSError this rank no longer touches the folder."""
        if not self.able:
            return None
        try:
            return action()
        except OSError as error:
            # A folder that vanished may cause any error; the proof is that its name now leads
            # elsewhere.
            finding_id = filesystem_findings.finding_id(error.errno)
            if self.has_moved():
                finding_id = "folder-unmounted"
            self._fail(
                finding_id, filesystem_findings.describe_error(operation, self.target, error)
            )
            return None

    def check_moved(self) -> None:
        """Records a problem if the folder was replaced by another one without an error."""
        if self.able and self.has_moved():
            message = f"{self.target} is no longer the folder that it was when the phase began"
            self._fail("folder-unmounted", message)

    def has_moved(self) -> bool:
        """Whether the folder's name now leads to another device."""
        if self.observation.location is None:
            return False
        try:
            return mounts.locate(self.target).device != self.observation.located.device
        except OSError:
            return True

    def warn(self, finding_id: str, message: str) -> None:
        self.observation.warnings.append((finding_id, f"{message} in {self.target}"))

    def warn_if_slow(self, operation: str, seconds: float) -> None:
        if seconds > SLOW_S:
            self.warn("folder-slow", f"{operation} {seconds:.1f} s")

    def exchange(self, name: str, payload: Any = None) -> list[Any]:
        return self.context.exchange(f"filesystem/{name}", payload)

    def _fail(self, finding_id: str, message: str) -> None:
        self.able = False
        self.observation.problems.append((finding_id, message))


def _make_folders(probe: FolderProbe) -> None:
    """All ranks make the same folders at once, as training code does that calls makedirs on every
    rank."""
    probe.observation.location = probe.attempt("looking", lambda: _locate(probe.target))
    probe.attempt(
        "making a folder",
        lambda: fault_injection.raise_folder_error(probe.context, "unwritable"),
    )
    rounds = MAKE_ROUNDS_QUICK if probe.context.options.quick else MAKE_ROUNDS
    for number in range(rounds):
        probe.exchange(f"make {number}")
        path = probe.root / f"{number}" / "deep" / "deeper"
        if probe.attempt("making a folder", partial(make_after_race, path)):
            probe.warn("makedirs-unsafe", "makedirs failed while others made the same folders")


def _locate(target: Path) -> dict[str, Any]:
    """Opens the folder first: stat does not mount what is mounted on demand (autofs), open does."""
    with contextlib.suppress(FileNotFoundError):
        os.scandir(str(target)).close()
    return mounts.locate(target).as_json()


def make_after_race(path: Path) -> bool:
    """Makes a folder; returns whether makedirs failed at first, although it must not."""
    try:
        os.makedirs(str(path), exist_ok=True)
        return False
    except OSError as error:
        if error.errno not in RACE_ERRORS:
            raise
    time.sleep(RACE_PAUSE_S)
    os.makedirs(str(path), exist_ok=True)
    return True


def _await_files(probe: FolderProbe) -> list[int]:
    """Every rank writes a file, and every rank reads all of them.

    Returns the ranks that see each other's files, and so can take the next steps together.
    """
    ranks = range(probe.context.env.world_size)
    # A client may cache "no such file": so every rank looks for the files before they exist.
    probe.attempt("looking", lambda: [_is_complete(probe, rank) for rank in ranks])
    probe.exchange("before writing")
    probe.attempt(
        "writing a file", lambda: fault_injection.raise_folder_error(probe.context, "disk-full")
    )
    rank = probe.context.env.rank
    probe.attempt(
        "writing a file", lambda: fs.write_synced(_rank_file(probe, rank), _rank_content(rank))
    )
    writers = [rank for rank, able in enumerate(probe.exchange("written", probe.able)) if able]
    seconds = probe.attempt("reading files", lambda: _visible_s(probe, writers)) or {}
    probe.check_moved()
    probe.observation.visible_s = seconds
    if seconds:
        probe.warn_if_slow("a new file became visible after", max(seconds.values()))
    sharing_ranks = largest_consistent_group(probe.exchange("visible", seconds))
    probe.able = probe.able and probe.context.env.rank in sharing_ranks
    return sharing_ranks


def _visible_s(probe: FolderProbe, writers: Sequence[int]) -> dict[str, float]:
    """Seconds until the whole file of each rank could be read; without the ranks whose file did not
    appear."""
    started = time.monotonic()
    limit_s = VISIBLE_LIMIT_QUICK_S if probe.context.options.quick else VISIBLE_LIMIT_S
    limit_s = min(limit_s, probe.context.remaining_s() / 2)
    seconds: dict[str, float] = {}
    while True:
        for rank in writers:
            if str(rank) not in seconds and _is_complete(probe, rank):
                seconds[str(rank)] = round(time.monotonic() - started, 4)
        if len(seconds) == len(writers) or time.monotonic() - started > limit_s:
            return seconds
        time.sleep(VISIBLE_POLL_S)


def _is_complete(probe: FolderProbe, rank: int) -> bool:
    path = _rank_file(probe, rank)
    try:
        return fs.is_visible(path) and fs.read_bytes(path) == _rank_content(rank)
    except OSError as error:
        if error.errno not in fs.files.TRANSIENT:
            raise
        return False


def _rank_file(probe: FolderProbe, rank: int) -> Path:
    return probe.root / f"rank{rank:05d}"


def _rank_content(rank: int) -> bytes:
    return f"written by rank {rank}\n".encode() * 64


def _try_locks(probe: FolderProbe, sharing_ranks: Sequence[int]) -> None:
    """The first rank takes each kind of lock, and a second one tries while it is held: on another
    host, if there is one, since a lock that only works within a host protects nothing."""
    hosts = [location.host for _, location in sorted(probe.context.locations.items())]
    holder = sharing_ranks[0]
    elsewhere = [rank for rank in sharing_ranks if hosts[rank] != hosts[holder]]
    with contextlib.ExitStack() as files:
        for rank in (holder, (elsewhere or sharing_ranks[1:])[0]):
            if probe.context.env.rank == rank and probe.able:
                probe.observation.locks = {}
                for kind, lock in LOCKS.items():
                    result = LOCKED
                    try:
                        # It holds the lock while it is open.
                        file = files.enter_context((probe.root / f"lock.{kind}").open("ab+"))
                        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError as error:
                        result = REFUSED if error.errno in LOCK_BUSY else str(error.strerror)
                    probe.observation.locks[kind] = result
            probe.exchange(f"lock of rank {rank}")


def _durable_write_s(probe: FolderProbe) -> float:
    """The shortest time of some attempts at a small durable write; the first that is not slow ends
    them."""
    fault_injection.raise_folder_error(probe.context, "unmounted")
    seconds: list[float] = []
    for number in range(SLOW_ATTEMPTS):
        started = time.monotonic()
        if probe.context.options.fault("slow-folder", probe.context.env.rank):
            time.sleep(fault_injection.FOLDER_DELAY_S)
        path = probe.root / f"synced{probe.context.env.rank}-{number}"
        fs.write_synced(path, bytes(DURABLE_BYTES))
        fs.fsync_directory(path.parent)
        seconds.append(time.monotonic() - started)
        if seconds[-1] <= SLOW_S:
            break
    probe.warn_if_slow("a durable write of 64 KiB took", min(seconds))
    return round(min(seconds), 4)


def _warn_of_low_space(probe: FolderProbe) -> None:
    """By what a user without privileges may still use. Some file systems do not count it."""
    status = os.statvfs(str(probe.root))
    free_bytes = status.f_bavail * status.f_frsize
    if status.f_blocks and free_bytes < LOW_BYTES:
        probe.warn("space-low", f"only {format_bytes(free_bytes)} are left")
    if status.f_files and status.f_favail < LOW_INODES:
        probe.warn("space-low", f"only {status.f_favail} inodes are left")
