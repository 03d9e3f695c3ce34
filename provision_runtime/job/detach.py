"""Leaves the shell that started a job's part: ssh may end, the part continues."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from ..comm import processes
from ..node import jobs


def run_detached(job: str, node: int, run: Callable[[], int]) -> int:
    """Start `run` in a new session, with a log; returns 0 when it has started.

    Its exit code is written into the part's folder.
    """
    folder = jobs.part_folder(job, node)
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (jobs.STATUS, jobs.PROCESS):
        if (folder / leftover).exists():
            (folder / leftover).unlink()
    started, started_end = os.pipe()
    if os.fork() != 0:
        os.close(started_end)
        with os.fdopen(started) as file:
            return 0 if file.read() else 1
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.close(started)
    log = os.open(folder / jobs.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    record = {"identity": processes.this_process(), "host": os.uname().nodename}
    (folder / jobs.PROCESS).write_text(json.dumps(record))
    os.write(started_end, b"started")
    os.close(started_end)
    status = 1
    try:
        status = run()
    finally:
        sys.stdout.flush()
        (folder / jobs.STATUS).write_text(str(status))
    return status
