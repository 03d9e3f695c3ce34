"""`provision jobs log --follow`: what a job prints, as it prints it, until it ends."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from pathlib import Path

from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.slurm import jobs as slurm_jobs
from provision.adapters.slurm.allocations import ENDED
from provision.cluster.inventory import NodeSelection
from provision.core.types import Progress
from provision.verbs.launch.jobs import KUBERNETES_PREFIX, Engine, kube_context, read_host_logs

# How often a file is read, and how often an engine is asked.
READ_S, ASK_S = 0.5, 3.0
Show = Callable[[str], None]


def follow_log(
    engine: Engine,
    job: str,
    selection: NodeSelection | None,
    namespace: str | None,
    show: Show,
    progress: Progress,
) -> bool:
    """Show a job's log until the job ends; returns whether it succeeded. Raises as `read_log`."""
    if engine == "slurm":
        state = _follow_slurm(job, show, progress)
    elif engine == "kubernetes":
        name = job.removeprefix(KUBERNETES_PREFIX)
        context = kube_context(selection)
        state = kubernetes_jobs.follow_log(name, show, progress, context, namespace)
    else:
        assert selection is not None
        state = _follow_hosts(job, selection, show, progress)
    progress.info(f"job {job}: {state}")
    return state in ("COMPLETED", "Complete", "done")


def _follow_slurm(job: str, show: Show, progress: Progress) -> str:
    """A job, or all tasks of an array; of these, the states that differ."""
    logs: dict[Path, _Log] = {}
    # Slurm forgets tasks that ended while others still run.
    states: dict[str, str] = {}
    shown, shown_last = "", Path()
    while True:
        tasks = slurm_jobs.show_tasks(job)
        for fields in tasks:
            states[fields.get("JobId", job)] = fields.get("JobState", "UNKNOWN")
        state = ", ".join(sorted(set(states.values())))
        # A job that ended before this question has written all that it will.
        has_ended = all(name.startswith(ENDED) for name in states.values())
        if state != shown and not has_ended:
            shown = state
            reason = tasks[0].get("Reason", "None")
            progress.info(f"job {job}: {state}" + (f" ({reason})" if reason != "None" else ""))
        until = time.monotonic() + ASK_S
        while True:
            for path in map(slurm_jobs.log_path, tasks):
                text = logs.setdefault(path, _Log()).read(path)
                if text:
                    header = f"==> {path.name}\n" if path != shown_last and len(states) > 1 else ""
                    shown_last = path
                    show(header + text)
            if has_ended or time.monotonic() >= until:
                break
            time.sleep(READ_S)
        if has_ended:
            return state


class _Log:
    """A file that grows; empty while there is none: it begins with the job."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0

    def read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return ""
        self._position += len(data)
        return self._decoder.decode(data)


def _follow_hosts(job: str, selection: NodeSelection, show: Show, progress: Progress) -> str:
    ends: dict[str, int] = {}
    unreachable: list[str] = []
    shown_last = ""
    while True:
        logs, problems = read_host_logs(job, selection, ends)
        if problems != unreachable:
            unreachable = problems
            for problem in problems:
                progress.warn(problem)
        for host, log in logs:
            if log["text"]:
                header = f"==> {host}\n" if host != shown_last and len(logs) > 1 else ""
                shown_last = host
                show(header + log["text"])
            ends[str(log["node"])] = log["end"]
        states = {log["state"] for _, log in logs}
        if "running" not in states and not problems:
            return "done" if states == {"done"} else ", ".join(sorted(states - {"done"}))
        time.sleep(ASK_S)
