"""Phase filesystem: can training code rely on the target folder, on every rank and between ranks?

All ranks take every step. A rank whose folder failed no longer touches it, but still takes part in
every exchange. filesystem_findings turns what all ranks observed into findings.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import secrets
import threading
import time
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any, TypeVar

from ... import fs
from ...fs import mounts
from .. import fault_injection
from ..outcome import Outcome
from . import filesystem_findings
from .filesystem_findings import (
    LOCK_KINDS,
    LOCK_LIMIT_S,
    LOCKED,
    REFUSED,
    TIMED_OUT,
    FolderObservation,
    Reads,
    Space,
    largest_consistent_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ..context import RankContext

T = TypeVar("T")

# Making folders: how many rounds, and how often makedirs is called again after a race.
MAKE_ROUNDS = 4
MAKE_ROUNDS_QUICK = 2
# What makedirs with exist_ok raises on file systems where two callers interfere
# (Lustre, NFS, FUSE).
RACE_ERRORS = (errno.EEXIST, errno.ENOENT, errno.ESTALE)
RACE_RETRIES = 20
RACE_PAUSE_S = 0.05

# NFS clients cache "no such file" for up to a minute (acdirmax); listing the folder usually ends
# it.
VISIBLE_LIMIT_S = 30.0
VISIBLE_LIMIT_QUICK_S = 10.0
VISIBLE_POLL_S = 0.01
# Files that do not appear may mean that the folder no longer exists: check that after this time.
MOVED_CHECK_S = 0.5
# A busy machine may be slow once: an operation is called slow only when every attempt is.
SLOW_ATTEMPTS = 2

FILE_BYTES = 64 << 10
# Each generation of the replaced file repeats its number, encoded in this many bytes.
WORD_BYTES = 8
GENERATIONS = 100
GENERATIONS_QUICK = 30
REPLACE_PAUSE_S = 0.002
# A reader that has not seen the last generation by then stops: how soon a file becomes visible is
# measured by another step.
READ_LIMIT_S = 5.0

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
        _replace_file(probe, sharing_ranks)
        _try_locks(probe, sharing_ranks)
        observation.sync_s = probe.attempt(
            "writing a file durably", lambda: _durable_write_s(probe)
        )
        observation.space = probe.attempt("asking for the free space", lambda: _free_space(probe))
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
    initial_location: mounts.MountLocation | None = None

    @property
    def rank(self) -> int:
        return self.context.env.rank

    def attempt(self, operation: str, action: Callable[[], T]) -> T | None:
        """What `action` returns. After an OSError this rank no longer touches the folder."""
        if not self.able:
            return None
        try:
            return action()
        except OSError as error:
            message = filesystem_findings.describe_error(operation, self.target, error)
            # A folder that vanished may cause any error; the proof is that its name now leads
            # elsewhere.
            has_moved = self.has_moved()
            self._fail(
                "folder-unmounted" if has_moved else filesystem_findings.finding_id(error.errno),
                message,
            )
            return None

    def check_moved(self) -> None:
        """Records a problem if the folder was replaced by another one without an error."""
        if self.able and self.has_moved():
            message = f"{self.target} is no longer the folder that it was when the phase began"
            self._fail("folder-unmounted", message)

    def has_moved(self) -> bool:
        """Whether the folder's name now leads to another device."""
        if self.initial_location is None:
            return False
        try:
            return mounts.locate(self.target).device != self.initial_location.device
        except OSError:
            return True

    def exchange(self, name: str, payload: Any = None) -> list[Any]:
        return self.context.exchange(f"filesystem/{name}", payload)

    def _fail(self, finding_id: str, message: str) -> None:
        self.able = False
        self.observation.problems.append((finding_id, message))


def _make_folders(probe: FolderProbe) -> None:
    """All ranks make the same folders at once, as training code does that calls makedirs on every
    rank."""
    probe.initial_location = probe.attempt("looking", lambda: _locate(probe.target))
    if probe.initial_location is not None:
        probe.observation.location = probe.initial_location.as_json()
    probe.attempt(
        "making a folder",
        lambda: fault_injection.raise_folder_error(probe.context, "unwritable"),
    )
    rounds = MAKE_ROUNDS_QUICK if probe.context.options.quick else MAKE_ROUNDS
    for number in range(rounds):
        probe.exchange(f"make {number}")
        path = probe.root / f"{number}" / "deep" / "deeper"
        races = probe.attempt("making a folder", functools.partial(make_counting_races, path))
        probe.observation.races += races or 0


def _locate(target: Path) -> mounts.MountLocation:
    """Opens the folder first: stat does not mount what is mounted on demand (autofs), open does."""
    try:
        os.scandir(str(target)).close()
    except FileNotFoundError:
        pass
    return mounts.locate(target)


def make_counting_races(path: Path) -> int:
    """Makes a folder; returns how often makedirs failed although it must not.

    Raises the last error if it keeps failing.
    """
    for failures in range(RACE_RETRIES):
        try:
            os.makedirs(str(path), exist_ok=True)
            return failures
        except OSError as error:
            if error.errno not in RACE_ERRORS:
                raise
        time.sleep(RACE_PAUSE_S)
    os.makedirs(str(path), exist_ok=True)
    return RACE_RETRIES


def _await_files(probe: FolderProbe) -> list[int]:
    """Every rank writes a file, and every rank reads all of them.

    Returns the ranks that see each other's files, and so can take the next steps together.
    """
    for number in range(SLOW_ATTEMPTS):
        visible_by_rank = _await_files_once(probe, number)
        times_s = [seconds for visible_s in visible_by_rank for seconds in visible_s.values()]
        if max(times_s, default=0.0) <= filesystem_findings.SLOW_S:
            break
    sharing_ranks = largest_consistent_group(visible_by_rank)
    probe.able = probe.able and probe.rank in sharing_ranks
    return sharing_ranks


def _await_files_once(probe: FolderProbe, number: int) -> list[dict[str, float]]:
    """For each rank, which ranks' files it saw after how many seconds: the shortest time of all
    attempts."""
    ranks = range(probe.context.env.world_size)
    # A client may cache "no such file": so every rank looks for the files before they exist.
    probe.attempt("looking", lambda: [_is_complete(probe, rank, number) for rank in ranks])
    probe.exchange("before writing")
    probe.attempt("writing a file", lambda: _write_rank_file(probe, number))
    writers = [rank for rank, able in enumerate(probe.exchange("written", probe.able)) if able]
    seconds = probe.attempt("reading files", lambda: _visible_s(probe, writers, number)) or {}
    probe.check_moved()
    previous = probe.observation.visible_s
    shortest = {name: min(value, previous.get(name, value)) for name, value in seconds.items()}
    probe.observation.visible_s = shortest
    return probe.exchange("visible", shortest)


def _write_rank_file(probe: FolderProbe, number: int) -> None:
    fault_injection.raise_folder_error(probe.context, "disk-full")
    fs.write_synced(_rank_file(probe, probe.rank, number), _rank_content(probe.rank))


def _visible_s(probe: FolderProbe, writers: Sequence[int], number: int) -> dict[str, float]:
    """Seconds until the whole file of each rank could be read; without the ranks whose file did not
    appear."""
    started = time.monotonic()
    limit_s = VISIBLE_LIMIT_QUICK_S if probe.context.options.quick else VISIBLE_LIMIT_S
    limit_s = min(limit_s, probe.context.remaining_s() / 2)
    seconds: dict[str, float] = {}
    while True:
        for rank in writers:
            if str(rank) not in seconds and _is_complete(probe, rank, number):
                seconds[str(rank)] = round(time.monotonic() - started, 4)
        waited_s = time.monotonic() - started
        if len(seconds) == len(writers) or waited_s > limit_s:
            return seconds
        if waited_s > MOVED_CHECK_S and probe.has_moved():
            return seconds
        time.sleep(VISIBLE_POLL_S)


def _is_complete(probe: FolderProbe, rank: int, number: int) -> bool:
    path = _rank_file(probe, rank, number)
    try:
        return fs.is_visible(path) and fs.read_bytes(path) == _rank_content(rank)
    except OSError as error:
        if error.errno not in fs.files.TRANSIENT:
            raise
        return False


def _rank_file(probe: FolderProbe, rank: int, number: int) -> Path:
    return probe.root / f"rank{rank:05d}.{number}"


def _rank_content(rank: int) -> bytes:
    return f"written by rank {rank}\n".encode() * 64


def _replace_file(probe: FolderProbe, sharing_ranks: Sequence[int]) -> None:
    """One rank replaces a file again and again while the others read it: each must see the old
    content or the new one, whole."""
    if len(sharing_ranks) < 2:
        return
    path = probe.root / "replaced"
    writer = sharing_ranks[0]
    last = GENERATIONS_QUICK if probe.context.options.quick else GENERATIONS
    if probe.rank == writer:
        probe.attempt("writing a file", lambda: fs.write_synced(path, generation_content(0)))
    probe.exchange("first generation")
    if probe.rank != writer and probe.able:
        probe.attempt("waiting for a file", lambda: fs.wait_until_visible(path, READ_LIMIT_S))
    if not probe.exchange("reading", probe.able)[writer]:
        return
    if probe.rank == writer:
        probe.attempt("replacing a file", lambda: write_generations(path, last))
    else:
        probe.observation.reads = probe.attempt(
            "reading a file while it is replaced", lambda: read_generations(path, last)
        )
    probe.exchange("replaced")


def generation_content(generation: int) -> bytes:
    return generation.to_bytes(WORD_BYTES, "little") * (FILE_BYTES // WORD_BYTES)


def write_generations(path: Path, last: int) -> None:
    temporary = path.with_name("replacement")
    for generation in range(1, last + 1):
        temporary.write_bytes(generation_content(generation))
        os.replace(str(temporary), str(path))
        time.sleep(REPLACE_PAUSE_S)


def read_generations(path: Path, last: int, limit_s: float = READ_LIMIT_S) -> Reads:
    """Reads until the last generation appears, or a content that is not whole."""
    deadline = time.monotonic() + limit_s
    count = 0
    torn = None
    generations: set[bytes] = set()
    while time.monotonic() < deadline:
        try:
            content = fs.read_bytes(path)
        except FileNotFoundError:
            torn = "no file"
            break
        torn = torn_problem(content)
        if torn:
            break
        count += 1
        generations.add(content[:WORD_BYTES])
        if int.from_bytes(content[:WORD_BYTES], "little") == last:
            break
        time.sleep(REPLACE_PAUSE_S / 4)
    return {"count": count, "generations": len(generations), "torn": torn}


def torn_problem(content: bytes) -> str | None:
    """What is wrong with content that a reader saw, or None."""
    if len(content) != FILE_BYTES:
        return f"{len(content)} of {FILE_BYTES} bytes"
    if content != content[:WORD_BYTES] * (FILE_BYTES // WORD_BYTES):
        return "the old content and the new one in one file"
    return None


def _try_locks(probe: FolderProbe, sharing_ranks: Sequence[int]) -> None:
    """Do flock and fcntl locks keep a second rank out, and let it in afterwards?

    Four exchanges: the holder locks, the peer tries, the holder releases, the peer tries again.
    """
    if len(sharing_ranks) < 2:
        return
    hosts = probe.exchange("hosts", probe.context.env.host)
    holder, peer = sharing_ranks[0], _lock_peer(sharing_ranks, hosts)
    results: dict[str, dict[str, str]] = {kind: {} for kind in LOCK_KINDS}
    files: dict[str, IO[bytes]] = {}
    if probe.rank in (holder, peer):
        probe.observation.locks = {"holder": holder, "peer": peer, "results": results}
        files = probe.attempt("opening a lock file", lambda: _open_lock_files(probe)) or {}
    for attempt, rank in (("held", holder), ("second", peer), ("after", peer)):
        if attempt == "after":
            if probe.rank == holder:
                _close_all(files)
            probe.exchange("locks released")
        if probe.rank == rank:
            for kind, file in files.items():
                lock = functools.partial(_lock, kind, file)
                results[kind][attempt] = call_within(LOCK_LIMIT_S, lock)
        probe.exchange(f"locks {attempt}")
    if probe.rank == peer:
        _close_all(files)


def _lock_peer(ranks: Sequence[int], hosts: Sequence[str]) -> int:
    """A rank on another host, if there is one: a lock that only works within a host protects
    nothing."""
    return next((rank for rank in ranks if hosts[rank] != hosts[ranks[0]]), ranks[1])


def _open_lock_files(probe: FolderProbe) -> dict[str, IO[bytes]]:
    return {kind: open(str(probe.root / f"lock.{kind}"), "ab+") for kind in LOCK_KINDS}


def _close_all(files: dict[str, IO[bytes]]) -> None:
    """Closing a file releases its locks."""
    for file in files.values():
        call_within(LOCK_LIMIT_S, functools.partial(_close, file))


def _close(file: IO[bytes]) -> str:
    try:
        file.close()
    except OSError as error:
        return str(error)
    return ""


def _lock(kind: str, file: IO[bytes]) -> str:
    lock = fcntl.flock if kind == "flock" else fcntl.lockf
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return LOCKED
    except OSError as error:
        return REFUSED if error.errno in LOCK_BUSY else str(error.strerror)


def call_within(limit_s: float, action: Callable[[], str]) -> str:
    """What the action returns, or TIMED_OUT; its thread is then left behind.

    A lock on a file system without its lock service waits in the kernel.
    """
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(action()), name="lock", daemon=True)
    thread.start()
    thread.join(limit_s)
    return results[0] if results else TIMED_OUT


def _durable_write_s(probe: FolderProbe) -> float:
    """The shortest time of some attempts at a small durable write; the first that is not slow ends
    them."""
    fault_injection.raise_folder_error(probe.context, "unmounted")
    seconds: list[float] = []
    for number in range(SLOW_ATTEMPTS):
        started = time.monotonic()
        fault_injection.delay_folder(probe.context)
        path = probe.root / f"synced{probe.rank}-{number}"
        fs.write_synced(path, bytes(FILE_BYTES))
        fs.fsync_directory(path.parent)
        seconds.append(time.monotonic() - started)
        if seconds[-1] <= filesystem_findings.SLOW_S:
            break
    return round(min(seconds), 4)


def _free_space(probe: FolderProbe) -> Space:
    """What a user without privileges may still use; None where the file system does not count."""
    status = os.statvfs(str(probe.root))
    return {
        "free_bytes": status.f_bavail * status.f_frsize if status.f_blocks else None,
        "free_inodes": status.f_favail if status.f_files else None,
    }
