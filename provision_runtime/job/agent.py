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
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Callable, List

from ..facts import oom
from .first_failure import RankFailure, read_failures, summary

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def run_launcher(words: Sequence[str]) -> None:
    """Become a program that starts ranks with torch's launcher, such as torchrun. words: its path and
    arguments, or -m with a module's name."""

    def report(failures: Sequence[RankFailure]) -> None:
        for line in summary(failures, world_size=0, nodes=1):
            sys.stderr.write(f"provision: {line}\n")

    _on_failures(socket.gethostname(), report)
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")


def _on_failures(node: str, report: Callable[[List[RankFailure]], None]) -> None:
    """Report failures of ranks where Python would print torch's exception. The status stays 1."""
    counter, folder = oom.this_counter(), os.getcwd()

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        if kind.__name__ == "ChildFailedError":
            kills = counter.rise() if counter else 0
            report(read_failures(error.failures, node, oom_kills=kills, folder=folder))
        elif kind.__name__ == "SignalException":  # of torch's agent, which has ended its ranks
            sys.stderr.write(f"provision: {error}\n")
        else:
            sys.__excepthook__(kind, error, traceback)

    sys.excepthook = hook
