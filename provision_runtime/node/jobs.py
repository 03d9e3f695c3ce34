"""Jobs on hosts without a scheduler: a folder for each, with its log, its process and its status.

The job itself is an ordinary process of the user; nothing of ours keeps running beside it.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..comm import processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .results import HostJobs, HostLog, HostLogs, JobOnHost

LOG, PROCESS, STATUS = "log", "process.json", "status"
# The end of a log that `job-log` returns.
LOG_BYTES = 1 << 20
# The status of every part of a job that was told to end.
CANCELED = 128 + signal.SIGTERM


def jobs_folder() -> Path:
    """Where this user's jobs are, by the XDG base directory specification."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "provision" / "jobs"


def part_folder(job: str, node: int) -> Path:
    """Of one node's part: several hosts may share a home."""
    return jobs_folder() / job / f"node-{node}"


class _Part(NamedTuple):
    """A part of a job that was started on this host. identity: of its process."""

    folder: Path
    node: int
    identity: list[str]

    def state(self) -> tuple[str, int | None]:
        try:
            status = int((self.folder / STATUS).read_text())
        except (OSError, ValueError):
            is_running = processes.state(self.identity) in (processes.ALIVE, processes.STOPPED)
            return "running" if is_running else "killed", None
        return {0: "done", CANCELED: "canceled"}.get(status, "failed"), status


def list_jobs() -> HostJobs:
    """The parts of jobs that ran or run on this host."""
    jobs: list[JobOnHost] = []
    for part in _parts("*"):
        state, status = part.state()
        job = part.folder.parent.name
        jobs.append({"id": job, "node": part.node, "state": state, "status": status})
    return {"jobs": jobs}


def read_logs(id: str, starts: Mapping[str, int]) -> HostLogs:
    """The end of the log of every part of a job on this host. starts: of a node, where to begin."""
    logs: list[HostLog] = []
    for part in _parts(id):
        state, _ = part.state()  # before its log is read: then all of it is
        with (part.folder / LOG).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(starts.get(str(part.node), 0), size - LOG_BYTES))
            text, end = file.read().decode(errors="replace"), file.tell()
        logs.append({"node": part.node, "text": text, "end": end, "state": state})
    return {"logs": logs}


def cancel(id: str) -> dict[str, list[str]]:
    """Send SIGTERM to every part of a job that runs on this host."""
    signaled = []
    for part in _parts(id):
        if part.state()[0] == "running":
            os.kill(int(part.identity[1]), signal.SIGTERM)
            signaled.append(part.folder.name)
    return {"signaled": signaled}


def _parts(job: str) -> Iterator[_Part]:
    """Without those of another host, and those whose record is damaged."""
    for folder in sorted(jobs_folder().glob(f"{job}/node-*")):
        try:
            node = int(folder.name.rpartition("-")[2])
            record = json.loads((folder / PROCESS).read_text())
            is_here = record["host"] == os.uname().nodename
            _, number, _ = record["identity"]
            int(number)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if is_here:
            yield _Part(folder, node, record["identity"])
