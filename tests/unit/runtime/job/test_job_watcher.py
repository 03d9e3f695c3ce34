"""Whether ranks are silent: real processes, looked at in quick succession."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from provision_runtime.comm.processes import children
from provision_runtime.hang.model import Snapshot
from provision_runtime.job import watcher
from provision_runtime.job.watcher import Watcher

# Starts one rank as a launcher does, and waits for it.
LAUNCHER = """
import os, subprocess, sys
environ = {**os.environ, "RANK": "0", "WORLD_SIZE": sys.argv[2], "MASTER_ADDR": "a", "MASTER_PORT": "1"}
sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1]], env=environ))
"""
READY = "import sys, time; print(1, flush=True)\n"
BUSY = "while True: pass"
WRITING = "file = open('/dev/null', 'wb', 0)\nwhile True: file.write(bytes(9**6)); time.sleep(0.01)"
CHILD = f"import subprocess; subprocess.run([sys.executable, '-c', {BUSY!r}])"
IDLE = "time.sleep(600)"
TICK_S = 0.3


@pytest.fixture
def start() -> Iterator[Callable[[str, int], int]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(program: str, world_size: int) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, READY + program, str(world_size)],
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        return process.pid

    yield start
    for process in processes:
        for rank in children(process.pid):
            subprocess.run(["kill", "-9", *map(str, [rank, *children(rank)])], check=True)
        process.communicate()


@pytest.mark.parametrize(
    ("program", "world_size", "is_whole_job", "is_silent"),
    [
        (IDLE, 1, True, True),
        (IDLE, 2, False, True),
        # The other rank may be at work on another machine.
        (IDLE, 2, True, False),
        (BUSY, 1, True, False),
        (WRITING, 1, True, False),
        (CHILD, 1, True, False),
    ],
)
def test_ranks_are_silent_only_if_nothing_works(
    program: str,
    world_size: int,
    is_whole_job: bool,
    is_silent: bool,
    start: Callable[[str, int], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "OBSERVED_S", 0.0)
    changes: list[Snapshot | None] = []
    watching = Watcher(
        start(program, world_size), 4 * TICK_S, changes.append, is_whole_job=is_whole_job
    )
    looks = 0
    # A busy machine may run a silent rank late: it gets time. One at work is looked at seven times.
    while not changes and looks < (200 if is_silent else 7):
        time.sleep(TICK_S)
        watching.look(time.monotonic())
        looks += 1
    assert bool(changes) == is_silent
    if is_silent:
        snapshot = changes[0]
        assert snapshot is not None and [rank.rank for rank in snapshot.ranks] == [0]
