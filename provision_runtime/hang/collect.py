"""Finds this user's ranks on this machine, and reads what each of them does."""

from __future__ import annotations

import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import ended, flight_recorder, folder, model, processes, record, stacks, state
from .model import Collective, RankState, Snapshot
from .stacks import StacksUnreadable
from .state import Look

if TYPE_CHECKING:
    from .processes import RankProcess

NATIVE_LOOKS = 2


@dataclass(frozen=True)
class Selection:
    """Which ranks: those of a process and its children, those that work in a folder or below it,
    those of an environment's prefix, those of a job (MASTER_ADDR:MASTER_PORT). All by default."""

    pid: int | None = None
    folder: str = ""
    prefix: str = ""
    job: str = ""

    def has(self, job: str, directory: str) -> bool:
        is_below = f"{directory}/".startswith(self.folder.rstrip("/") + "/")
        return (not self.folder or is_below) and self.job in ("", job)


def collect(
    selection: Selection, *, observed_s: float = 2.0, timeout_s: float = 8.0, raw: str = ""
) -> Snapshot:
    """What the selected ranks do; if none runs, how those of the last job ended.

    Args:
        observed_s: seconds between two looks, by which a rank that works is told from one that waits.
        timeout_s: seconds for all; ranks that were not read by then are unknown.
        raw: a folder for the stacks as the tools print them, and the flight recorder's dumps.
    """
    start = time.time()
    deadline = start + timeout_s
    ranks = [
        process
        for process in processes.rank_processes(selection.pid)
        if selection.has(process.job, process.directory)
        and (not selection.prefix or process.prefix == selection.prefix.rstrip("/"))
    ]
    records = [r for r in ended.records() if selection.has(r.job, r.directory)]
    if selection.pid is not None:
        records = [record for record in records if selection.pid in (record.pid, record.launcher)]
    states: list[RankState] = []
    if ranks:
        reader = _Reader(ranks, deadline, raw)
        first = reader.look()
        for process in ranks:
            flight_recorder.ask(process.environ, process.rank, folder.root_of(process.pid))
        time.sleep(observed_s)
        last = reader.look()
        reader.add_native_frames(first, last)
        for process in ranks:
            if process.pid in first and process.pid in last:
                looks = first[process.pid], last[process.pid]
                states.append(_running(process, *looks, observed_s, start, raw))
    launchers = {process.parent for process in ranks}
    if not ranks and records:
        launchers = {max(records, key=lambda record: record.time).launcher}
    states += ended.states(states, ranks, [r for r in records if r.launcher in launchers])
    notes = sorted({state.detail for state in states if state.kind == model.UNKNOWN})
    if not stacks.py_spy():
        notes.append(
            "py-spy is not installed here: stacks come from the hook, without native frames."
        )
    return Snapshot(
        schema=model.SCHEMA,
        host=socket.gethostname(),
        time=start,
        observed_s=observed_s,
        ranks=sorted(states, key=lambda state: (state.job, state.rank)),
        notes=notes,
    )


class _Reader:
    """Looks at ranks, several at once. What is not read by the deadline is unknown."""

    def __init__(self, ranks: list[RankProcess], deadline: float, raw: str) -> None:
        self._ranks, self._deadline, self._raw = ranks, deadline, raw
        self._program = stacks.py_spy()

    def look(self) -> dict[int, Look]:
        """By pid; without those that are gone."""
        with ThreadPoolExecutor(8) as pool:
            looks = pool.map(self._look_at, self._ranks)
        return {rank.pid: look for rank, look in zip(self._ranks, looks) if look}

    def _look_at(self, rank: RankProcess) -> Look | None:
        others = processes.descendants(rank.pid, {process.pid for process in self._ranks})
        try:
            activity = processes.activity(rank.pid, others)
        except OSError:
            return None
        threads: list[model.Thread] = []
        reason = ""
        if activity.state not in "TtZ":
            threads, reason = self._threads(rank)
        waits = [processes.file_wait(pid) for pid in (rank.pid, *others)]
        return Look(activity, threads, reason, [wait for wait in waits if wait])

    def _threads(
        self, rank: RankProcess, *, native: bool = False
    ) -> tuple[list[model.Thread], str]:
        timeout_s = max(0.5, self._deadline - time.time())
        reasons = []
        for dump in (self._by_py_spy, self._by_signal):
            try:
                threads, text = dump(rank, timeout_s, native)
            except StacksUnreadable as error:
                reasons.append(str(error))
                continue
            if self._raw:
                suffix = "native.json" if native else f"{dump.__name__[4:]}.txt"
                with open(f"{self._raw}/rank{rank.rank}-{rank.pid}.{suffix}", "w") as file:
                    file.write(text)
            return threads, ""
        return [], "; ".join(reasons)

    def _by_py_spy(
        self, rank: RankProcess, timeout_s: float, native: bool
    ) -> tuple[list[model.Thread], str]:
        if not self._program:
            raise StacksUnreadable("there is no py-spy on this machine")
        return stacks.dump_by_py_spy(
            self._program, rank.pid, rank.directory, timeout_s, native=native
        )

    def _by_signal(
        self, rank: RankProcess, timeout_s: float, native: bool
    ) -> tuple[list[model.Thread], str]:
        return stacks.dump_by_signal(rank.pid, rank.stem, rank.directory, timeout_s)

    def add_native_frames(self, first: dict[int, Look], last: dict[int, Look]) -> None:
        """Native frames of the ranks that wait in no collective by their Python frames. They take a
        second of CPU each, so only a few ranks are read, and equal stacks count as equal."""
        alike: dict[Any, list[RankProcess]] = {}
        for rank in self._ranks if self._program else ():
            if rank.pid in first and rank.pid in last:
                frames = stacks.main_thread(last[rank.pid].threads).frames
                is_same = frames == stacks.main_thread(first[rank.pid].threads).frames
                if is_same and frames and not state.collective_of(frames, []):
                    alike.setdefault(tuple(frames), []).append(rank)
        for ranks in list(alike.values())[:NATIVE_LOOKS]:
            threads, _ = self._threads(ranks[0], native=True)
            for rank in ranks if threads else ():
                last[rank.pid] = replace(last[rank.pid], threads=threads)


def _running(
    rank: RankProcess, first: Look, last: Look, observed_s: float, start: float, raw: str
) -> RankState:
    calls = _calls(rank, start, raw)
    judgment = state.judge(rank.pid, first, last, calls, observed_s)
    return RankState(
        rank=rank.rank,
        world_size=rank.world_size,
        local_rank=rank.local_rank,
        host=socket.gethostname(),
        pid=rank.pid,
        job=rank.job,
        kind=judgment.kind,
        detail=judgment.detail,
        line=judgment.line,
        collective=judgment.collective,
        threads=last.threads,
        calls=calls,
        workers=[wait for wait in last.waits if wait.pid != rank.pid],
        parameters=ended.parameters(f"{rank.stem}.model"),
    )


def _calls(rank: RankProcess, start: float, raw: str) -> list[Collective]:
    """What the flight recorder or the light record has of a rank's calls."""
    path = flight_recorder.dump_path(rank.environ, rank.rank, folder.root_of(rank.pid))
    try:
        if path:
            calls = flight_recorder.read(path, start, start + 4, rank.directory)
            if raw:
                shutil.copy(path, raw)
            return calls
    except (OSError, ValueError):  # Gloo: its recorder has no pipe
        pass
    try:
        return record.read(f"{rank.stem}.calls", rank.directory)
    except OSError:
        return []
