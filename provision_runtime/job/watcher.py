"""Notices that the ranks of this node do nothing: a thread of the process that supervises them.

A rank works if it, or a process that it started, uses the CPU, reads or writes, loads pages from a
disk, or is at another line than before. So a long evaluation, compilation, download or save is no
silence, even if all other ranks wait for it. A rank that waits in a collective is not taken to work,
though NCCL uses the CPU meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from ..hang import diagnosis, model, page
from ..hang.collect import Selection, collect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROC = Path("/proc")
# Of one core, and bytes per second: less than this is the housekeeping of threads that wait.
IDLE_CPU, IDLE_BYTES = 0.05, 20_000
# How often the stacks are compared while nothing else shows work.
SNAPSHOTS, OBSERVED_S = 4, 1.0
SHORTEST_TICK_S, LONGEST_TICK_S = 0.5, 15.0
TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a rank and the processes below it have used so far. faults: pages that came from a
    disk."""

    cpu_s: float
    io_bytes: int
    faults: int

    def works_since(self, before: Optional[Usage], elapsed_s: float) -> bool:
        if before is None:
            return True
        # Sums fall when a process ends: what it used is its parent's, or was counted before.
        return (
            abs(self.cpu_s - before.cpu_s) > IDLE_CPU * elapsed_s
            or abs(self.io_bytes - before.io_bytes) > IDLE_BYTES * elapsed_s
            or self.faults > before.faults
        )


class Watcher(threading.Thread):
    """Calls `on_change` with a snapshot of the ranks whenever they have been silent for
    `hang_after_s`, and with None when they work again.

    launcher: the process whose children are the ranks. is_whole_job: only watch while all ranks of
    the job are here.
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
        self._usages: dict[int, Usage] = {}
        self._looked = time.monotonic()
        self._quiet_since = self._looked
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
        usages = dict(rank_usages(self._launcher, self._is_whole_job))
        working = [
            pid
            for pid, usage in usages.items()
            if usage.works_since(self._usages.get(pid), elapsed_s)
        ]
        is_same = usages.keys() == self._usages.keys()
        self._usages = usages
        # This process was suspended too, if it looks so late.
        was_suspended = elapsed_s > 3 * self._tick_s + LONGEST_TICK_S
        is_quiet = is_same and not was_suspended and all(map(_uses_gpu, working))
        if not usages or not is_quiet:
            self._work(now)
        elif now >= self._quiet_since + (self._snapshots + 1) * self._hang_after_s / SNAPSHOTS:
            self._compare_stacks(now, set(working))

    def _compare_stacks(self, now: float, working: set[int]) -> None:
        snapshot = collect(Selection(pid=self._launcher), observed_s=OBSERVED_S)
        if any(rank.pid in working and rank.kind != model.COLLECTIVE for rank in snapshot.ranks):
            self._work(now)
            return
        stacks = [(rank.pid, rank.kind, _position(rank)) for rank in snapshot.ranks]
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

    The page is empty if it finds no hang, such as where a rank sleeps on purpose. A job of which this is
    unknown goes on.
    """
    jobs = [job for job in diagnosis.diagnose(snapshots) if job.verdict != diagnosis.NO_HANG]
    lines = [line for job in jobs for line in page.lines(job, None)]
    is_ended = on_hang != "report" and any(job.verdict != diagnosis.UNKNOWN for job in jobs)
    if on_hang != "report" and not is_ended:
        lines.append(f"whether this is a hang is unknown, so --on-hang {on_hang} lets the job run")
    if not jobs:
        return [], False
    return [f"no rank has done anything for {hang_after_s:.0f} s:", *lines], is_ended


def _position(rank: model.RankState) -> object:
    main = [thread.frames for thread in rank.threads if thread.is_main]
    return main, rank.calls[-1:]


def rank_usages(launcher: int, is_whole_job: bool = False) -> Iterator[tuple[int, Usage]]:
    """The usage of each rank, by its process. Nothing if ranks of the job are elsewhere and
    is_whole_job."""
    parents: dict[int, list[int]] = {}
    fields: dict[int, list[bytes]] = {}
    for entry in os.listdir(PROC):
        if not entry.isdigit():
            continue
        try:
            stat = (PROC / entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        fields[int(entry)] = stat
        parents.setdefault(int(stat[1]), []).append(int(entry))
    ranks = [pid for pid in parents.get(launcher, ()) if _variable(pid, b"RANK")]
    if is_whole_job and any(_variable(pid, b"WORLD_SIZE") != b"%d" % len(ranks) for pid in ranks):
        return
    for rank in ranks:
        ticks = faults = io_bytes = 0
        family = [rank]
        while family:
            pid = family.pop()
            family += parents.get(pid, ())
            faults += int(fields[pid][9])
            ticks += sum(map(int, fields[pid][11:15]))
            io_bytes += _io_bytes(pid)
        yield rank, Usage(ticks * TICKS_S, io_bytes, faults)


def _variable(pid: int, name: bytes) -> bytes:
    """A variable of the environment with which a process started."""
    try:
        content = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""
    return dict(entry.partition(b"=")[::2] for entry in content.split(b"\0")).get(name, b"")


def _io_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines[:2])  # rchar, wchar


def _uses_gpu(pid: int) -> bool:
    """Whether a process has a GPU open: it may use the CPU only to wait for it."""
    folder = PROC / str(pid) / "fd"
    try:
        return any(
            os.readlink(folder / name).startswith("/dev/nvidia") for name in os.listdir(folder)
        )
    except OSError:
        return False
