"""torchrun's agent on one node, in a separate process: imports torch, waits until every node has
done so, then starts the ranks. When ranks fail, it reports how each ended, instead of torch's page.

So nobody waits at torch's own rendezvous for a node whose file system is cold.
"""

from __future__ import annotations

import glob
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

from ..facts import oom
from ..hang.folder import is_private, rank_folder
from .channel import log
from .first_failure import RankFailure, read_failures, summary
from .watcher import Watcher, hang_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..hang.model import Snapshot

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
        world_size = max((hooked.world_size for hooked in _hooked_ranks()), default=0)
        if not hang_status:
            log(*summary(failures, world_size, nodes=1))

    def end(snapshot: Optional[Snapshot]) -> None:
        if snapshot is None or hang_status:
            return
        log(*hang_page([snapshot], hang_after_s))
        if on_hang != "report":
            hang_status.append(HUNG)
            if on_hang == "requeue":
                subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
            os.kill(os.getpid(), signal.SIGTERM)  # torchrun ends its ranks then

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


class _HookedRank(NamedTuple):
    """A rank that this process started, as its hook wrote it down (hang/hook.py). failed, ended: Unix
    times of its exception, and of its own end; 0: neither."""

    rank: int
    world_size: int
    pid: int
    failed: float = 0.0
    ended: float = 0.0


def _hooked_ranks() -> Iterator[_HookedRank]:
    folder = rank_folder()
    if not is_private(folder, os.getuid()):
        return
    for path in glob.glob(f"{folder}/*.rank"):
        try:
            with open(path, encoding="utf-8") as file:
                rank, world_size, _, _, _, parent, is_child, *_ = file.read().split("\n")
            if is_child != "0" or int(parent) != os.getpid() or os.path.getmtime(path) < STARTED:
                continue
            row = _HookedRank(int(rank), int(world_size), int(os.path.basename(path).split("-")[0]))
        except (OSError, ValueError):  # another process writes or removes it
            continue
        name = path[: -len(".rank")]
        if os.path.exists(f"{name}.error"):
            row = row._replace(failed=os.path.getmtime(f"{name}.error"))
        elif os.path.exists(f"{name}.ended"):
            row = row._replace(ended=os.path.getmtime(f"{name}.ended"))
        yield row


def _on_failures(node: str, report: Callable[[List[RankFailure]], None]) -> None:
    """Report failures of ranks where Python would print torch's exception. The status stays 1."""
    counter, folder = oom.this_counter(), os.getcwd()

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        if kind.__name__ == "ChildFailedError":
            kills = counter.rise() if counter else 0
            failures = read_failures(error.failures, node, oom_kills=kills, folder=folder)
            report(_with_times(failures, error.failures, node))
        elif kind.__name__ == "SignalException":  # of torch's agent, which has ended its ranks
            log(str(error))
        else:
            sys.__excepthook__(kind, error, traceback)

    sys.excepthook = hook


def _with_times(
    failures: List[RankFailure], processes: Mapping[int, Any], node: str
) -> List[RankFailure]:
    """With the times of their exceptions, which torch rounds to seconds; and the ranks that ended
    without an error."""
    hooked = sorted(_hooked_ranks(), key=lambda hooked: hooked.ended)
    failed = {hooked.pid: hooked.failed for hooked in hooked if hooked.failed}
    timed = [
        replace(failure, time=failed.get(processes[failure.rank].pid, failure.time))
        for failure in failures
    ]
    ended = {row.rank: row for row in hooked if row.rank not in processes}
    timed += [
        RankFailure(row.rank, node, row.ended, status=0) for row in ended.values() if row.ended
    ]
    return timed
