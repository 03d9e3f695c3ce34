"""torchrun's agent on one node, both ends: a separate process that imports torch, waits until every
node has done so, then starts the ranks. When ranks fail, it reports how each ended, instead of torch's page.

So nobody waits at torch's own rendezvous for a node whose file system is cold.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Callable, List, Optional

from ..comm import processes
from ..facts import oom
from ..hang import diagnosis, ended, folder, model
from ..hang.model import Rank, Snapshot
from ..hang.stacks import user_frame
from ..hang.variables import rank_variables
from ..report.findings import known_error
from .channel import log
from .errors import JobError
from .first_failure import RankFailure, advice, read_failure, summary
from .watcher import Watcher, hang_page

# The status of a job that was ended because it hung, and is to be requeued or not.
HUNG = 79
STARTED = time.time()
STOPPING = (signal.SIGTERM, signal.SIGINT)
# While the command starts, until something handles them.
BLOCKED = (*STOPPING, signal.SIGUSR1)


class Agent:
    """The process that becomes torchrun, for the one that starts it."""

    def __init__(self, variables: dict[str, str], name: str) -> None:
        results, results_end = os.pipe()
        orders_end, orders = os.pipe()
        package = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, "-s", package, "job-agent"]
        command += [str(results_end), str(orders_end), name]
        self.child = start(command, variables, (results_end, orders_end))
        os.close(results_end)
        os.close(orders_end)
        self._results, self._orders = os.fdopen(results), os.fdopen(orders, "w")

    def import_s(self) -> float | None:
        """Wait for the import of torch; None if it failed."""
        line = self._results.readline()
        return float(line) if line else None

    def failures(self) -> object:
        """How its ranks ended, once it has ended; empty if none failed. A list of RankFailure in JSON."""
        with self._results as file:
            return json.loads(file.readline() or "[]")

    def order(self, arguments: list[str]) -> None:
        with self._orders as file:
            file.write(json.dumps(arguments))

    def abandon(self) -> None:
        """End it before it has started ranks."""
        self._results.close()
        self._orders.close()
        self.child.kill()
        self.child.wait()


def start(
    command: list[str], variables: dict[str, str], descriptors: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    """A child in a new session; the kernel ends it if this process is killed."""
    end_with_parent = processes.death_signal(signal.SIGTERM)

    def prepare() -> None:
        end_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)  # it inherits the held signals

    try:
        return subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=prepare,
        )
    except OSError as error:
        raise JobError(f"`{command[0]}` cannot be started: {error.strerror}") from error


def run(results: int, orders: int, node: str) -> None:
    """Write the seconds that the import took to the file descriptor `results`; then run torchrun
    with the arguments that come through `orders`, or end if none come. If ranks fail, `results` gets
    their failures too. A line of JSON each.

    Ranks start with USR1 ignored, because ignored signals stay so in the programs that a process
    starts. A script that saves on USR1 sets a handler; any other continues.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.set_inheritable(results, False)
    started = time.monotonic()
    from torch.distributed import run as torchrun

    with contextlib.suppress(OSError):  # without a folder of this user alone: no flight recorder
        recorder = rank_variables(folder.ensure_folder())
        os.environ.update({**recorder, **os.environ})
    file = os.fdopen(results, "w")

    def send(document: object) -> None:
        file.write(json.dumps(document) + "\n")
        file.flush()

    send(time.monotonic() - started)
    with os.fdopen(orders) as source:
        text = source.read()
    if not text:
        sys.exit(1)
    _on_failures(node, lambda failures: send([asdict(failure) for failure in failures]))
    torchrun.main(json.loads(text))


def run_launcher(tokens: Sequence[str], hang_after_s: float, on_hang: str) -> None:
    """Become a program that starts ranks with torch's launcher, such as torchrun.

    Args:
        tokens: its path and arguments, or -m with a module's name.
        hang_after_s: report a hang when all ranks were silent for so long; 0: never.
        on_hang: report or end.
    """

    def report(failures: List[RankFailure]) -> None:
        states = ended.missing([], _records())
        world_size = max((state.world_size for state in states), default=0)
        snapshot = Snapshot(model.SCHEMA, socket.gethostname(), time.time(), states, [])
        causes = [cause for job in diagnosis.diagnose([snapshot]) for cause in job.causes]
        log(*summary(failures, world_size, nodes=1, cause=next(iter(causes), None)))

    is_reported = is_ended = False

    def end(snapshot: Optional[Snapshot]) -> None:
        nonlocal is_reported, is_ended
        if snapshot is None or is_reported:
            return
        lines, is_ended = hang_page([snapshot], hang_after_s, on_hang)
        is_reported = bool(lines)
        log(*lines)
        if is_ended:
            os.kill(os.getpid(), signal.SIGTERM)  # torchrun ends its ranks then

    _on_failures(socket.gethostname(), report)
    if hang_after_s:
        Watcher(os.getpid(), hang_after_s, end, is_whole_job=True).start()
    is_module = tokens[0] == "-m"
    sys.argv = list(tokens[is_module:])
    try:
        if is_module:
            runpy.run_module(tokens[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(tokens[0], run_name="__main__")
    except BaseException:
        if is_ended:
            sys.exit(HUNG)
        raise


def _records() -> dict[str, Rank]:
    """The ranks that this process started, the newest first, by the stem of the files that their hooks
    left (hang/folder.py)."""
    return {
        stem: rank
        for stem, rank in ended.records().items()
        if rank.launcher == os.getpid() and os.path.getmtime(f"{stem}.stacks") >= STARTED
    }


def _on_failures(node: str, report: Callable[[List[RankFailure]], None]) -> None:
    """Report failures of ranks where Python would print torch's exception. The status stays 1."""
    counter = oom.this_counter()

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        if kind.__name__ == "ChildFailedError":
            kills = counter.rise() if counter else 0
            rows = _read_failures(error.failures, node)
            report([replace(row, oom_kills=kills) for row in rows])
        elif kind.__name__ == "SignalException":  # of torch's agent, which has ended its ranks
            log(str(error))
        else:
            sys.__excepthook__(kind, error, traceback)
            id = known_error(str(error))  # of torchrun itself, such as a port in use
            log(*(advice(id) if id else ()))

    sys.excepthook = hook


def _read_failures(failures: Mapping[int, Any], node: str) -> Iterator[RankFailure]:
    """How ranks ended, by torch and by the records of their hooks, which have the exact time and the
    line; also those that ended without an error."""
    records = _records()
    stems = {rank.pid: stem for stem, rank in records.items()}
    for number, failure in sorted(failures.items()):
        row = read_failure(number, failure, node)
        stem = stems.get(failure.pid)
        error = ended.error(stem, records[stem]) if stem else None
        if error is not None:
            line = user_frame(error.frames)
            site = f"{os.path.relpath(line.file)}:{line.line}" if line else ""
            row = replace(row, time=error.time, site=site)
        yield row
    # Of a rank that was restarted, only its last process.
    last = {rank.rank: stem for stem, rank in reversed(records.items())}
    for number in last.keys() - failures.keys():
        path = f"{last[number]}.ended"
        if os.path.exists(path):
            yield RankFailure(number, node, os.path.getmtime(path), status=0)
