"""The ranks of one host as processes, from the first start to the last end. None outlives this
process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..comm import processes
from ..facts import oom
from . import last_states, rank_env
from .options import PHASES, Options
from .postmortem import Location
from .watchdog import PEER_LOST

LOOPBACK = "127.0.0.1"
# Rarely: polling takes time from a core that is being measured.
POLL_S = 0.1
# How long rank 0 may continue after a rank failed: it may notice that itself and report. When it is
# ended, it still collects the other ranks' last states (last_states.GRACE_S) and writes the report.
GRACE_S = 4.0
# Once rank 0 has ended, only the other ranks' last states are awaited.
SHORT_GRACE_S = 1.2
NO_SUCH_HOST = "no-such-host.invalid"  # RFC 6761: never resolves


class LaunchedRanks:
    """Starts the ranks, each as a process; `wait` returns when all have ended."""

    def __init__(self, options: Options, arguments: Sequence[str], ranks: int, port: int) -> None:
        self._out = options.out
        self._ends_at = time.monotonic() + options.timeout_s
        self._received: int | None = None
        self.started = time.time()
        self.ranks = ranks
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        # How the ranks ended that ended by themselves.
        self.failures: dict[int, str] = {}
        # The ranks inherit this process's cgroup.
        self._oom_counter = oom.this_counter()
        self._previous_handlers = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        shared = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": NO_SUCH_HOST if options.fault("unresolvable-master") else LOOPBACK,
            "MASTER_PORT": str(port),
            rank_env.ENDS_AT: repr(self._ends_at),
        }
        # As torchrun does: ranks that each use all cores slow one another down.
        shared = {"OMP_NUM_THREADS": "1", **os.environ, **shared}
        for rank in range(ranks):
            if not options.fault("absent", rank):
                variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                self.children[rank] = self._start(arguments, variables, rank)

    @property
    def codes(self) -> dict[int, int | None]:
        return {rank: child.poll() for rank, child in self.children.items()}

    @property
    def oom_kills(self) -> int:
        """How many processes of this cgroup the kernel has killed since the start."""
        return self._oom_counter.rise() if self._oom_counter else 0

    def wait(self) -> str:
        """Returns when all ranks have ended: the reason why they had to be ended, or an empty
        text."""
        try:
            reason = self._watch()
            self._stop()
            return reason
        finally:
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)

    def _start(
        self, arguments: Sequence[str], variables: dict[str, str], rank: int
    ) -> subprocess.Popen[bytes]:
        # The ranks must see the same modules as this process.
        flags = {
            "-B": sys.flags.dont_write_bytecode,
            "-s": sys.flags.no_user_site,
            "-E": sys.flags.ignore_environment,
            "-I": sys.flags.isolated,
        }
        package = str(Path(__file__).resolve().parent.parent)
        with log_path(self._out, rank).open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, *(flag for flag in flags if flags[flag]), package, *arguments],
                env=variables,
                stdin=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=processes.death_signal(signal.SIGKILL),
            )
        # Instead of the rank, which may be stopped or killed before it can.
        env = rank_env.from_environment(variables)
        assert env is not None
        process = processes.identity(child.pid)
        location = Location(PHASES[0], env.host, process, env.run, self._oom_counter)
        with suppress(OSError):  # the rank reports what is wrong with its folder
            last_states.write_location(self._out, rank, location)
        return child

    def _watch(self) -> str:
        """Returns when all ranks have ended, or with the reason not to wait any longer."""
        failed_since: float | None = None
        while self._living():
            time.sleep(POLL_S)
            now = time.monotonic()
            if failed_since is None:
                self.failures = {
                    rank: describe_exit(code) for rank, code in self.codes.items() if code
                }
                failed_since = now if self.failures else None
            if self._received is not None:
                return f"ended by {signal.Signals(self._received).name}"
            # Rank 0 needs longer than the others: it reports for all.
            first = self._living().get(0)
            grace_s = SHORT_GRACE_S if first is None or _is_stopped(first) else GRACE_S
            if failed_since is not None and now > failed_since + grace_s:
                rank, failure = next(iter(self.failures.items()))
                return f"rank {rank} {failure}"
            if now > self._ends_at + GRACE_S:
                return "the time of the whole run is over"
        return ""

    def _stop(self) -> None:
        """Requests last states and a report from the remaining ranks; then kills what is left."""
        for rank, child in self._living().items():
            if _is_stopped(child):
                self.failures[rank] = "is stopped"
                child.kill()
        if self.codes.get(0, 0) is None:
            for child in self._living().values():
                child.send_signal(PEER_LOST if self._received is None else self._received)
            end = time.monotonic() + GRACE_S
            while self._living() and time.monotonic() < end:
                time.sleep(POLL_S)
                if self.codes[0] is not None:
                    end = min(end, time.monotonic() + SHORT_GRACE_S)
        for child in self._living().values():
            child.kill()
        for child in self.children.values():
            child.wait()

    def _living(self) -> dict[int, subprocess.Popen[bytes]]:
        return {rank: child for rank, child in self.children.items() if child.poll() is None}

    def _receive(self, number: int, _: object) -> None:
        self._received = number


def _is_stopped(child: subprocess.Popen[bytes]) -> bool:
    return processes.state(processes.identity(child.pid)) == processes.STOPPED


def log_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.log"


def describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"
