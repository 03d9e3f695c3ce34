"""Notices that the ranks of this node do nothing: a thread of the process that supervises them.

A rank works if it, or a process that it started, uses the CPU or waits for it, reads or writes, or is
at another line than before. So a long evaluation, compilation, download or save is no silence, even
if all other ranks wait for it. A rank that waits in a collective is not taken to work, though NCCL uses
the CPU meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Callable, Optional

from ..hang import diagnosis, model, page, processes
from ..hang.collect import ProcessSelection, collect

# Of one core, and bytes per second: less than this is the housekeeping of threads that wait.
IDLE_CPU, IDLE_BYTES = 0.05, 20_000
# How often the stacks are compared while nothing else shows work.
SNAPSHOTS, OBSERVED_S = 4, 1.0
SHORTEST_TICK_S, LONGEST_TICK_S = 0.5, 15.0


class Watcher(threading.Thread):
    """Calls `on_change` with a snapshot of the ranks whenever they have been silent for
    `hang_after_s`, and with None when they work again.

    launcher: the process that started the ranks. is_whole_job: only watch while all ranks of the job
    are here.
    """

    def __init__(
        self,
        launcher: int,
        hang_after_s: float,
        on_change: Callable[[Optional[model.Snapshot]], None],
        *,
        is_whole_job: bool,
    ) -> None:
        super().__init__(name="provision-watcher", daemon=True)
        self._launcher, self._hang_after_s, self._on_change = launcher, hang_after_s, on_change
        self._is_whole_job = is_whole_job
        self._tick_s = min(max(hang_after_s / 20, SHORTEST_TICK_S), LONGEST_TICK_S)
        self._activities: dict[int, processes.Activity] = {}
        self._looked = self._quiet_since = time.monotonic()
        self._stacks: object = None
        self._snapshots = 0
        self._is_silent = False

    def run(self) -> None:
        while True:
            time.sleep(self._tick_s)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Compare with the look before."""
        elapsed_s, self._looked = now - self._looked, now
        before, self._activities = self._activities, self._read()
        working = set()
        for pid, activity in self._activities.items():
            # Sums fall when a process ends that a rank started.
            cpu_s = abs(activity.cpu_s - before.get(pid, activity).cpu_s)
            count = abs(activity.read - before.get(pid, activity).read)
            is_busy = cpu_s > IDLE_CPU * elapsed_s or count > IDLE_BYTES * elapsed_s
            # On a machine that is overloaded, it may get no CPU at all.
            if is_busy or activity.state == "R":
                working.add(pid)
        is_same = bool(before) and before.keys() == self._activities.keys()
        if not is_same or not all(map(_uses_gpu, working)):
            self._work(now)
        elif now >= self._quiet_since + (self._snapshots + 1) * self._hang_after_s / SNAPSHOTS:
            self._compare_stacks(now, working)

    def _read(self) -> dict[int, processes.Activity]:
        """The activity of each rank, by its process; nothing while ranks of the job are elsewhere."""
        ranks = [process.rank for process in processes.rank_processes(self._launcher)]
        if self._is_whole_job and any(rank.world_size > len(ranks) for rank in ranks):
            return {}
        pids, parents = {rank.pid for rank in ranks}, processes.parents_of_all()
        activities = {}
        for pid in pids:
            try:
                children = processes.descendants(pid, pids, parents)
                activities[pid] = processes.activity(pid, children)
            except OSError:  # it has ended
                continue
        return activities

    def _compare_stacks(self, now: float, working: set[int]) -> None:
        snapshot = collect(ProcessSelection(pid=self._launcher), observed_s=OBSERVED_S)
        if any(rank.pid in working and rank.kind != model.COLLECTIVE for rank in snapshot.ranks):
            self._work(now)
            return
        stacks = [
            (
                rank.pid,
                rank.calls[-1:],
                [thread.frames for thread in rank.threads if thread.is_main],
            )
            for rank in snapshot.ranks
        ]
        if self._snapshots and stacks != self._stacks:
            self._work(now)
        self._stacks = stacks
        self._snapshots += 1
        if self._snapshots % SNAPSHOTS == 0:
            self._is_silent = True
            self._on_change(snapshot)

    def _work(self, now: float) -> None:
        self._quiet_since, self._snapshots = now, 0
        if self._is_silent:
            self._is_silent = False
            self._on_change(None)


def hang_page(
    snapshots: Sequence[model.Snapshot], hang_after_s: float, on_hang: str
) -> tuple[list[str], bool]:
    """The page of `provision why` for the job's log, and whether on_hang ends the job.

    The page is empty if it finds no hang. A job of which this is unknown goes on.
    """
    states = [rank for snapshot in snapshots for rank in snapshot.ranks]
    if os.isatty(0) and any(rank.kind == model.DEBUGGER for rank in states):
        return [], False  # somebody may be typing there
    jobs = diagnosis.diagnose(snapshots)
    verdicts = {job.verdict for job in jobs} - {diagnosis.NO_HANG}
    if not verdicts:
        return [], False
    lines = [line for job in jobs for line in page.lines(job, None)]
    head = f"no rank has done anything for {hang_after_s:.0f} s:"
    return [head, *lines], on_hang != "report" and verdicts != {diagnosis.UNKNOWN}


def _uses_gpu(pid: int) -> bool:
    """Whether a process has a GPU open: it may use the CPU only to wait for it."""
    folder = f"/proc/{pid}/fd"
    try:
        links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    except OSError:  # it has ended, or closed one meanwhile
        return False
    return any(link.startswith("/dev/nvidia") for link in links)
