"""Finds this user's ranks on this machine, and reads what each of them does."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..dataclass import frozen
from . import ended, flight_recorder, processes, record, stacks, state
from .model import (
    DATA_LOADER,
    RUNNING,
    SCHEMA,
    WAITING,
    Collective,
    Rank,
    RankState,
    Snapshot,
    Thread,
    Worker,
)
from .spawned import all_ranks
from .state import Look

if TYPE_CHECKING:
    from .processes import RankProcess

# Ranks of which native frames are read, too: a second of CPU each; and workers of a rank.
MAX_CLOSER, MAX_WORKERS = 4, 8
# How long a dump of the flight recorder may take: its pipe is read every second.
DUMP_S = 4.0


@frozen
class ProcessSelection:
    """Which ranks: those of a process and of those below it, those that work in a folder or below it,
    those of an environment's prefix. All by default."""

    pid: int | None = None
    folder: str = ""
    prefix: str = ""

    def has(self, rank: Rank) -> bool:
        return f"{rank.directory}/".startswith(self.folder.rstrip("/") + "/")


def collect(
    selection: ProcessSelection, *, observed_s: float = 2.0, timeout_s: float = 8.0
) -> Snapshot:
    """What the selected ranks do; if none runs, how those of the last job ended.

    Args:
        observed_s: seconds between two looks, by which a rank that works is told from one that waits.
        timeout_s: seconds for all; ranks that were not read by then are unknown.
    """
    start = time.time()
    spawned = all_ranks(selection.pid, timeout_s / 2)
    ranks = [
        process
        for process in spawned.processes
        if selection.has(process.rank) and selection.prefix in ("", process.prefix)
    ]
    states = _observe(ranks, observed_s, start, start + timeout_s)
    kinds = {rank.kind for rank in states}
    if kinds & {WAITING, DATA_LOADER} and RUNNING not in kinds:
        # It may have an answer or a batch soon: look again.
        states = _observe(ranks, observed_s, start, start + timeout_s)
    launchers = {process.rank.launcher for process in ranks}
    on_record = {
        stem: rank
        for stem, rank in ended.records().items()
        if selection.has(rank)
        and not ended.is_older(stem, rank.launcher)
        and not (selection.pid and ended.is_older(stem, selection.pid))
        and (not selection.pid or {selection.pid, *launchers} & {rank.pid, rank.launcher})
    }
    if not ranks and not selection.prefix:  # no record has the prefix of its environment
        launchers = {rank.launcher for rank in [*on_record.values()][:1]}
    of_launchers = {k: rank for k, rank in on_record.items() if rank.launcher in launchers}
    jobs = {process.rank.job for process in ranks}
    states += [state for state in spawned.ended if state.job in jobs]
    states += ended.missing(states, of_launchers)
    notes = list(spawned.notes)
    if ranks and not stacks.py_spy():
        notes.append("no py-spy here: stacks come from the hook, without native frames")
    states.sort(key=lambda state: (state.job, state.rank))
    return Snapshot(SCHEMA, socket.gethostname(), start, states, notes)


def _observe(
    ranks: list[RankProcess], observed_s: float, start: float, deadline: float
) -> list[RankState]:
    """Two looks at each rank. Without those that end meanwhile."""
    pids = {process.rank.pid for process in ranks}
    with ThreadPoolExecutor(8) as pool:
        parents = processes.parents_of_all()
        first = list(pool.map(partial(_look, pids, parents, deadline), ranks))
        dumps = list(map(flight_recorder.ask, ranks))
        if ranks:
            time.sleep(observed_s)
        parents = processes.parents_of_all()
        last = list(pool.map(partial(_look, pids, parents, deadline), ranks))
        # Ranks whose Python frames are in no collective may wait in one of C++, or for their workers.
        unclear = [
            (process, look)
            for process, before, look in zip(ranks, first, last)
            if look and state.is_unclear(before, look, observed_s)
        ]
        closer = {
            look.pid: look
            for look in pool.map(partial(_closer, parents, deadline), unclear[:MAX_CLOSER])
        }
        last = [look and closer.get(look.pid, look) for look in last]
        calls = list(pool.map(partial(_calls, start), ranks, dumps))
    return [
        state.judge(process.rank, before, after, of_rank, observed_s)
        for process, before, after, of_rank in zip(ranks, first, last, calls)
        if before and after
    ]


def _look(
    pids: set[int], parents: dict[int, int], deadline: float, process: RankProcess
) -> Look | None:
    pid = process.rank.pid
    children = processes.descendants(pid, pids, parents)
    threads: list[Thread] = []
    reason = ""
    try:
        activity = processes.activity(pid, children)
        timeout_s = max(0.5, deadline - time.time())
        threads = stacks.dump(
            pid, process.stem, process.rank.directory, timeout_s, activity.state in "Tt"
        )
    except OSError:
        return None
    except stacks.StacksUnreadable as error:
        reason = str(error)
    waits = list(filter(None, map(processes.file_wait, (pid, *children))))
    return Look(pid, activity, threads, reason, waits)


def _closer(parents: dict[int, int], deadline: float, pair: tuple[RankProcess, Look]) -> Look:
    """A look with native frames, or with what the workers of the rank's DataLoader do; as it is if these
    cannot be read by the deadline."""
    process, look = pair
    directory, timeout_s = process.rank.directory, max(0.5, deadline - time.time())
    try:
        if not state.is_in_loader(look):
            return replace(
                look, threads=stacks.dump_by_py_spy(look.pid, directory, timeout_s, "--native")
            )
        waits = list(look.waits)
        for pid in processes.descendants(look.pid, set(), parents)[:MAX_WORKERS]:
            letter = processes.activity(pid, []).state
            line = state.line_of_worker(stacks.dump(pid, "", directory, timeout_s, letter in "Tt"))
            if line:
                waits.append(Worker(pid, letter, line=line))
        return replace(look, waits=waits)
    except (OSError, stacks.StacksUnreadable):
        return look


def _calls(start: float, process: RankProcess, dump: str) -> list[Collective]:
    """What the flight recorder or the light record has of a rank's calls."""
    directory = process.rank.directory
    try:
        if dump:
            return flight_recorder.read(dump, start, start + DUMP_S, directory)
        return record.read(f"{process.stem}.calls", directory)
    except (OSError, ValueError):
        return []
