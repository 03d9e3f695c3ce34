"""torchrun's agent on one node, in a separate process: imports torch, waits until every node has
done so, then starts the ranks. When ranks fail, it reports how each ended, instead of torch's page.

So nobody waits at torch's own rendezvous for a node whose file system is cold.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from ..facts import oom
from ..hang import ended
from ..hang.stacks import user_frame
from .channel import log
from .first_failure import RankFailure, read_failures, summary
from .watcher import Watcher, hang_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..hang.model import Rank, Snapshot

# The status of a job that was ended because it hung, and is to be requeued or not.
HUNG = 79
STARTED = time.time()


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


def run_launcher(words: Sequence[str], hang_after_s: float, on_hang: str) -> None:
    """Become a program that starts ranks with torch's launcher, such as torchrun.

    Args:
        words: its path and arguments, or -m with a module's name.
        hang_after_s: report a hang when all ranks were silent for so long; 0: never.
        on_hang: report, end, or requeue (the job of Slurm that this is part of).
    """

    def report(failures: List[RankFailure]) -> None:
        world_size = max((rank.world_size for rank in _records().values()), default=0)
        if not hang_status:
            log(*summary(failures, world_size, nodes=1))

    def end(snapshot: Optional[Snapshot]) -> None:
        if snapshot is None or reported:
            return
        lines, is_ended = hang_page([snapshot], hang_after_s, on_hang)
        log(*lines)
        reported.extend([True] if lines else [])
        if is_ended:
            hang_status.append(HUNG)
            if on_hang == "requeue":
                subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
            os.kill(os.getpid(), signal.SIGTERM)  # torchrun ends its ranks then

    reported: List[bool] = []
    hang_status: List[int] = []
    _on_failures(socket.gethostname(), report)
    if hang_after_s:
        Watcher(os.getpid(), hang_after_s, end, is_whole_job=True).start()
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
    except BaseException:
        if hang_status:
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
    counter, folder = oom.this_counter(), os.getcwd()

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        if kind.__name__ == "ChildFailedError":
            kills = counter.rise() if counter else 0
            failures = read_failures(error.failures, node, oom_kills=kills, folder=folder)
            report(_with_records(failures, error.failures))
        elif kind.__name__ == "SignalException":  # of torch's agent, which has ended its ranks
            log(str(error))
        else:
            sys.__excepthook__(kind, error, traceback)

    sys.excepthook = hook


def _with_records(failures: List[RankFailure], processes: Mapping[int, Any]) -> List[RankFailure]:
    """With the exact times of their errors, and the lines where they crashed; and with the ranks that
    ended without an error."""
    records = _records()
    stems = {rank.pid: stem for stem, rank in records.items()}
    complete = []
    for failure in failures:
        stem = stems.get(processes[failure.rank].pid)
        error = ended.error(stem, records[stem]) if stem else None
        if error is not None:
            failure = replace(failure, time=error.time)
            line = user_frame(error.frames)
            if not failure.chain and line is not None:
                failure = replace(failure, site=f"{os.path.relpath(line.file)}:{line.line}")
        complete.append(failure)
    # Of a rank that was restarted, only its last process.
    last = {rank.rank: stem for stem, rank in reversed(records.items())}
    for number, stem in sorted(last.items()):
        path = f"{stem}.ended"
        if (
            number not in processes
            and os.path.exists(path)
            and not ended.error(stem, records[stem])
        ):
            end = RankFailure(number, failures[0].node, os.path.getmtime(path), status=0)
            complete.append(end)
    return complete
