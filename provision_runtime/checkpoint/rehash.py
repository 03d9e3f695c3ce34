"""Hashing shared files again while the training goes on, since what nobody reads decays unnoticed.

After each save a thread of rank 0 hashes one of PARTS parts of the files that have several names or
copies: the part that was hashed longest ago, and all that were not hashed for MAX_AGE_S. The record of
this is in the folder of the copies. Works without torch.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Iterator

from . import catalog, copies, layout, verification
from .errors import CheckpointError

if TYPE_CHECKING:
    from .copies import Content
    from .storage import Storage

PARTS = 16
MAX_AGE_S = 86400
RECORD = "rehash.json"
MAX_RECORD_BYTES = 4096
# The thread sleeps so that it takes at most this share of one processor's time.
CPU_SHARE = 0.25


class Rehash:
    """One thread at a time, and the damage that it has found."""

    def __init__(self) -> None:
        self.problems: deque[str] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, storage: Storage) -> None:
        """Does nothing while the last thread is still running."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(
            target=self._run, args=(storage,), name="provision-rehash", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        self._stop.set()
        self.wait()

    def _run(self, storage: Storage) -> None:
        try:
            self.problems.extend(rehash(storage, int(time.time()), self._stop))
        except (OSError, CheckpointError) as error:
            self.problems.append(f"shared files could not be hashed again: {error}")


def rehash(storage: Storage, now: int, stop: threading.Event) -> Iterator[str]:
    """Hashes the parts that are due. Yields a sentence for each damaged file.

    A file with an intact copy is repaired; the content of another is written again by the next save.
    """
    start = time.thread_time()
    times = read_times(storage, now)
    oldest, *newer = sorted(range(PARTS), key=times.__getitem__)
    due = [oldest] + [part for part in newer if now - times[part] >= MAX_AGE_S]
    contents = copies.survey(
        storage, catalog.intact_newest_first(storage), lambda digest: _part_of(digest) in due
    )
    _rest(start, stop)
    for part in due:
        for digest, content in contents.items():
            is_shared = len(content.folders) > 1 or len(content.copies) > 1
            if is_shared and _part_of(digest) == part:
                yield from _check(storage, content, stop)
            if stop.is_set():
                return
        times[part] = now
        storage.replace(copies.FOLDER, RECORD, json.dumps({"times": times}).encode())


def read_times(storage: Storage, now: int) -> list[int]:
    """When each part was hashed last, in seconds since 1970. A part without a time was never hashed:
    it is older than what is hashed now, and its age counts from now on.
    """
    buffer = memoryview(bytearray(MAX_RECORD_BYTES))
    times: object = None
    try:
        size = storage.read_into(copies.FOLDER, RECORD, 0, buffer)
        times = json.loads(bytes(buffer[:size]))["times"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # none yet, or damaged
        pass
    unknown = now - 1  # also after the clock was set back
    if not isinstance(times, list) or len(times) != PARTS:
        return [unknown] * PARTS
    return [then if isinstance(then, int) and then <= now else unknown for then in times]


def _check(storage: Storage, content: Content, stop: threading.Event) -> Iterator[str]:
    """Hashes every copy of a content, and repairs what is damaged."""
    for folder, name in content.copies.values():
        start = time.thread_time()
        storage.drop_cache(folder, name)
        entry = replace(content.entry, name=name)
        problem = verification.check_file(storage, folder, entry, {})
        if problem and not _was_removed(storage, folder, name):
            layout.damaged.add(storage.root)
            result = "no intact copy of it could be found or written"
            if copies.heal(storage, folder, name, content.entry):
                result = "it was replaced by its other copy"
            yield f"{storage.root}/{folder}/{name} was damaged: {problem}; {result}"
        _rest(start, stop)
        if stop.is_set():
            return


def _rest(start: float, stop: threading.Event) -> None:
    """Sleeps until this thread has used no more than its share since `start`, or the run ends."""
    stop.wait((time.thread_time() - start) * (1 / CPU_SHARE - 1))


def _was_removed(storage: Storage, folder: str, name: str) -> bool:
    """Whether a save or prune removed the file meanwhile."""
    if folder == copies.FOLDER:
        return name not in copies.names(storage)
    return folder not in storage.folders()


def _part_of(digest: str) -> int:
    return int(digest[:8], 16) % PARTS
