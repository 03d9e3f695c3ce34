"""Jobs on hosts without a scheduler: a folder for each, with its log, its process and its status.

The job itself is an ordinary process of the user; nothing of ours keeps running beside it.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from ..comm import processes

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


def list_jobs() -> dict[str, Any]:
    """The parts of jobs that ran or run on this host."""
    rows = []
    for folder in sorted(jobs_folder().glob("*/node-*")):
        record = _record(folder)
        if record is None:
            continue
        state, status = _state(folder, record)
        node = int(folder.name.rpartition("-")[2])
        rows.append({"id": folder.parent.name, "node": node, "state": state, "status": status})
    return {"jobs": rows}


def read_logs(id: str) -> dict[str, Any]:
    """The end of the log of every part of a job on this host."""
    logs = []
    for folder in sorted((jobs_folder() / id).glob("node-*")):
        if _record(folder) is None:
            continue
        with (folder / LOG).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
        logs.append({"node": int(folder.name.rpartition("-")[2]), "text": text})
    return {"logs": logs}


def cancel(id: str) -> dict[str, Any]:
    """Send SIGTERM to every part of a job that runs on this host."""
    signaled = []
    for folder in sorted((jobs_folder() / id).glob("node-*")):
        record = _record(folder)
        if record is not None and _state(folder, record)[0] == "running":
            os.kill(int(record["identity"][1]), signal.SIGTERM)
            signaled.append(folder.name)
    return {"signaled": signaled}


def _record(folder: Path) -> dict[str, Any] | None:
    """What the part wrote when it started; None if that was another host, or the file is damaged."""
    try:
        int(folder.name.rpartition("-")[2])
        record = json.loads((folder / PROCESS).read_text())
        is_own = record["host"] == os.uname().nodename
        _, number, _ = record["identity"]
        int(number)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if is_own else None


def _state(folder: Path, record: dict[str, Any]) -> tuple[str, int | None]:
    try:
        status = int((folder / STATUS).read_text())
    except (OSError, ValueError):
        status = None
    if status is not None:
        return {0: "done", CANCELED: "canceled"}.get(status, "failed"), status
    if processes.state(record["identity"]) in (processes.ALIVE, processes.STOPPED):
        return "running", None
    return "killed", None
