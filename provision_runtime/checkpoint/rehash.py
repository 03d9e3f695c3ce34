"""Hashing linked files again while the training goes on, since what nobody reads decays unnoticed.

Each save lets a thread of rank 0 hash one of TURNS parts of the linked files and of their second
copies, more of them if the last time was long ago: every file within TURNS saves, and within
MAX_AGE_S as long as there are saves. The record is in the folder of the copies. Object stores check
their objects themselves, and reading them costs money, so they are left out. Works without torch.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from . import catalog, copies, corrupt_files, verification
from .errors import CheckpointError

if TYPE_CHECKING:
    from .backends import Backend

TURNS = 16
MAX_AGE_S = 86400.0
RECORD = "rehash.json"
# The thread sleeps so that it takes at most this part of one processor's time.
SHARE = 0.25


class RehashRecord(NamedTuple):
    """turn: how many turns there were. time: of the last one, in seconds since 1970; 0 before the
    first.
    """

    turn: int = 0
    time: int = 0


class Rehash:
    """One thread at a time; `take_problems` says what the last ones found."""

    def __init__(self) -> None:
        self._problems: list[str] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, backend: Backend) -> None:
        """Leaves a thread that is still at work alone."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or backend.traits.links != "hard":
            return
        self._thread = threading.Thread(
            target=self._run, args=(backend,), name="provision-rehash", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        self._stop.set()
        self.wait()

    def take_problems(self) -> list[str]:
        problems, self._problems = self._problems, []
        return problems

    def _run(self, backend: Backend) -> None:
        try:
            self._problems = self._problems + rehash(backend, time.time(), self._stop)
        except (OSError, CheckpointError) as error:
            self._problems = [*self._problems, f"files could not be hashed again: {error}"]


def rehash(backend: Backend, now: float, stop: threading.Event) -> list[str]:
    """Hashes what is due; a sentence for each damaged file.

    A file with an intact copy is healed; another is written again by the next save if that has its
    content.
    """
    record = read_record(backend)
    due = (now - record.time) * TURNS / MAX_AGE_S if record.time else 1
    turns = {(record.turn + number) % TURNS for number in range(int(min(max(due, 1), TURNS)))}
    problems: list[str] = []
    block = memoryview(bytearray(backend.traits.block))
    folders = catalog.intact_newest_first(backend)
    linked = {}
    for sha256, content in copies.survey(backend, folders).items():
        if len(content.folders) > 1 or len(content.copies) > 1:
            linked[sha256] = content
    for sha256, content in linked.items():
        if _turn_of(sha256) not in turns:
            continue
        for home, name in content.copies.values():
            started = time.thread_time()
            backend.drop_cache(home, name)
            entry = replace(content.entry, name=name)
            problem = verification.check_file(backend, home, entry, block, quick=True)
            if stop.wait((time.thread_time() - started) * (1 / SHARE - 1)):
                return problems
            if not problem or (home != copies.FOLDER and home not in backend.folders()):
                continue
            corrupt_files.add(backend.root, content.entry.name)
            text = f"{backend.root}/{home}/{name} was damaged: {problem}; "
            if copies.heal(backend, home, name, content.entry):
                text += "it was replaced by its other copy"
            else:
                text += "no intact copy of it could be found or written"
            problems.append(text)
    if linked:
        record = RehashRecord(record.turn + len(turns), int(now))
        backend.replace(copies.FOLDER, RECORD, json.dumps(record._asdict()).encode())
    return problems


def read_record(backend: Backend) -> RehashRecord:
    """What the last turns left; an empty record if there were none, or it cannot be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        document = json.loads(backend.read(copies.FOLDER, RECORD))
        return RehashRecord(int(document["turn"]), int(document["time"]))
    return RehashRecord()


def _turn_of(sha256: str) -> int:
    return int(sha256[:8], 16) % TURNS
