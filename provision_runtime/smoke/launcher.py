"""Starts the ranks of one host without torchrun, and sees to it that none outlives the run.

Owns processes. Imports no torch: it must be able to report that torch is broken. The ranks report; the launcher does so
only where rank 0 could not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import fs
from ..comm import processes
from ..facts import environment as facts
from ..facts import libraries
from ..report import model, table
from . import options as choices
from . import postmortem, progress, rank_env, runner
from .checks import expectation
from .outcome import Finding, Outcome, united
from .reporting import REPORT_NAME, write_report
from .watchdog import PEER_LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LOOPBACK = "127.0.0.1"
RANKS_WITHOUT_GPU = 2
PORT_TRIES = 5
# Rarely: looking takes time from a core that is measured.
POLL_S = 0.1
# After the first rank ended badly, rank 0 may still find out and report; told to end, it still collects where the
# others stood (ending.GRACE_S) and writes the report.
GRACE_S = 4.0
# Once rank 0 has ended there is only the others' own word to wait for.
SHORT_GRACE_S = 1.2
PR_SET_PDEATHSIG = 1
LOG_LINES = 20
NO_SUCH_HOST = "no-such-host.invalid"  # RFC 6761: never resolves


def launch(
    options: choices.Options, arguments: Sequence[str], choose_port: Callable[[], int] | None = None
) -> int:
    """Run all ranks here; 0 when the report says success and every rank ended well, else 1."""
    ranks = options.ranks or default_ranks(options.backend)
    choices.check_faults(options, ranks)
    options = choices.for_world(options, ranks)
    _prepare(options.out)
    _prepare_junit(options.junit)
    for _ in range(PORT_TRIES):
        with _rehearsed_port(options, choose_port or free_port) as port:
            run = Run(options, arguments, ranks, port)
            reason = run.wait()
        if run.codes.get(0) != runner.PORT_BUSY:
            break
    return _conclude(options, run, reason)


@contextmanager
def _rehearsed_port(options: choices.Options, choose: Callable[[], int]) -> Iterator[int]:
    """A port for the store; to rehearse a busy one, this process listens on it."""
    port = choose()
    if not options.fault("busy-port"):
        yield port
        return
    with socket.create_server(("", port)):
        yield port


def default_ranks(backend: str) -> int:
    """One per visible GPU, unless Gloo was asked for."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(libraries.device_nodes())
    if visible is not None:
        gpus = min(gpus, len([name for name in visible.split(",") if name not in ("", "-1")]))
    return gpus if gpus and backend != "gloo" else RANKS_WITHOUT_GPU


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Run:
    """The ranks as processes, from the first start to the last end."""

    def __init__(
        self, options: choices.Options, arguments: Sequence[str], ranks: int, port: int
    ) -> None:
        self._out = options.out
        self._ends_at = time.monotonic() + options.timeout_s
        self._received: int | None = None
        self.started = time.time()
        self.ranks = ranks
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        # What became of ranks before anybody here ended them.
        self.fates: dict[int, str] = {}
        previous = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._previous = previous
        for rank in range(ranks):
            if not options.fault("absent", rank):
                master = NO_SUCH_HOST if options.fault("unresolvable-master") else LOOPBACK
                self.children[rank] = self._start(
                    arguments, _environment(rank, ranks, (master, port), self._ends_at), rank
                )

    @property
    def codes(self) -> dict[int, int | None]:
        return {rank: child.poll() for rank, child in self.children.items()}

    def wait(self) -> str:
        """Until no rank is left. Says why it had to end them, or nothing."""
        try:
            reason = self._watch()
            self._stop()
            return reason
        finally:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _start(
        self, arguments: Sequence[str], environment: dict[str, str], rank: int
    ) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            *_interpreter_flags(),
            str(Path(__file__).resolve().parent.parent),
            *arguments,
        ]
        with log_path(self._out, rank).open("wb") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=_dying_with(os.getpid()),
            )

    def _watch(self) -> str:
        """Until all ended, or there is a reason not to wait any longer."""
        bad_since: float | None = None
        while self._living():
            time.sleep(POLL_S)
            now = time.monotonic()
            bad = {
                rank: in_words(code) for rank, code in self.codes.items() if code not in (None, 0)
            }
            if bad and bad_since is None:
                bad_since = now
                self.fates.update(bad)
            if self.codes.get(0) == runner.PORT_BUSY:
                self._kill()
            elif self._received is not None:
                return f"ended by {signal.Signals(self._received).name}"
            elif bad_since is not None and now > bad_since + self._grace_s():
                return next(f"rank {rank} {words}" for rank, words in bad.items())
            elif now > self._ends_at + GRACE_S:
                return "the time of the whole run is over"
        return ""

    def _stop(self) -> None:
        """Ask where the others stand and let them report; then end what is left."""
        for rank, child in self._living().items():
            if _is_stopped(child):
                self.fates[rank] = "is stopped"
                child.kill()
        if self.codes.get(0, 0) is None:
            for child in self._living().values():
                child.send_signal(PEER_LOST if self._received is None else self._received)
            end = time.monotonic() + GRACE_S
            while self._living() and time.monotonic() < end:
                time.sleep(POLL_S)
                end = (
                    min(end, time.monotonic() + SHORT_GRACE_S) if self.codes[0] is not None else end
                )
        self._kill()

    def _kill(self) -> None:
        for child in self._living().values():
            child.kill()
        for child in self.children.values():
            child.wait()

    def _grace_s(self) -> float:
        """Rank 0 needs longer than the others: it reports for all."""
        first = self.children.get(0)
        return (
            GRACE_S
            if first is not None and first.poll() is None and not _is_stopped(first)
            else SHORT_GRACE_S
        )

    def _living(self) -> dict[int, subprocess.Popen[bytes]]:
        return {rank: child for rank, child in self.children.items() if child.poll() is None}

    def _receive(self, number: int, _: object) -> None:
        self._received = number


def _is_stopped(child: subprocess.Popen[bytes]) -> bool:
    return processes.state(processes.identity(child.pid)) == processes.STOPPED


def _interpreter_flags() -> list[str]:
    """The ranks must see the same modules as we do."""
    given = (
        ("-B", sys.flags.dont_write_bytecode),
        ("-s", sys.flags.no_user_site),
        ("-E", sys.flags.ignore_environment),
        ("-I", sys.flags.isolated),
    )
    return [flag for flag, is_set in given if is_set]


def _environment(rank: int, ranks: int, master: tuple[str, int], ends_at: float) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        rank_env.ENDS_AT: repr(ends_at),
        # What torchrun does: ranks that each take all cores slow one another down.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _dying_with(parent: int) -> Callable[[], None]:
    """For the child between fork and exec: the kernel kills it when we end, however we end."""
    libc = ctypes.CDLL(None)

    def bind() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def log_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.log"


def _prepare(out: Path) -> None:
    """What an earlier run left must not be taken for this one's."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for pattern in (REPORT_NAME, "rank*.log", "rank*.stuck.json", "rank*.at.json"):
            for path in out.glob(pattern):
                path.unlink()
    except OSError as error:
        raise choices.UsageError(f"--out {out} cannot be written: {error}") from error


def _prepare_junit(path: Path | None) -> None:
    """Empty until there is something to tell: no CI service takes that, or what an earlier run left, for a success."""
    if path is None:
        return
    try:
        fs.atomic_write(path, b"")
    except OSError as error:
        raise choices.UsageError(f"--junit {path} cannot be written: {error.strerror}") from error


def _conclude(options: choices.Options, run: Run, reason: str) -> int:
    for path in options.out.glob("rank*.at.json"):
        path.unlink()
    found = _read(options.out / REPORT_NAME) or _empty(options, run)
    ended_badly = {rank: in_words(code) for rank, code in run.codes.items() if code != 0}
    pending = progress.first_pending(found)
    if pending is None and not ended_badly:
        return 0 if model.succeeded(found.verdict) else 1
    # A rank also ends with 1 where the report is complete and says that all is not well: fail or unknown.
    is_said = found.verdict == model.FAIL or (
        pending is None and not model.succeeded(found.verdict)
    )
    for rank, words in ended_badly.items():
        if rank in run.fates or not is_said:
            print(f"rank {rank} {words}; see {log_path(options.out, rank)}", file=sys.stderr)
    if not is_said:
        _report_failure(options, run, found, pending or "teardown", reason)
    return 1


def _report_failure(
    options: choices.Options, run: Run, found: model.Report, name: str, reason: str
) -> None:
    """In place of rank 0, which could not. A rank that left its word ended because of another one."""
    fates = {
        rank: words
        for rank, words in run.fates.items()
        if not postmortem.stuck_path(options.out, rank).exists()
    }
    # A rank that finds the others gone ends by itself, with 1.
    fates = {rank: words for rank, words in fates.items() if words != in_words(1)} or fates
    if fates:
        findings = united([_cause(name, rank, words) for rank, words in fates.items()])
    elif name == "teardown" and (
        left := [rank for rank in run.children if postmortem.stuck_path(options.out, rank).exists()]
    ):
        findings = (Finding("rank-stuck", "it did not get away after the last phase", tuple(left)),)
    else:
        findings = (
            Finding(
                "interrupted" if reason.startswith("ended by") else "rank-died",
                reason or "the ranks ended without a report",
            ),
        )
    data: dict[str, Any] = {
        "logs": {str(rank): _tail(log_path(options.out, rank)) for rank in run.children}
    }
    failing = progress.with_failure(
        found, name, Outcome(findings=findings, data=data), time.time() - run.started
    )
    write_report(failing, options.out / REPORT_NAME, options.junit)
    said = next(phase for phase in failing.phases if phase.name == name)
    print("\n".join(table.phase_lines(asdict(said), table.terminal_width())), flush=True)


def _cause(name: str, rank: int, words: str) -> Finding:
    """What became of a rank. One that crashed in facts did so while it imported torch, which is tried again apart."""
    if name == "facts" and words in CRASHES and (error := facts.collect_apart()["error"]):
        return replace(expectation.broken(error), ranks=(rank,))
    return Finding(
        "rank-stopped" if words == "is stopped" else "rank-died", f"its process {words}", (rank,)
    )


def _read(path: Path) -> model.Report | None:
    try:
        return model.loads(path.read_text())
    except (OSError, model.ReportUnreadable):
        return None


def _empty(options: choices.Options, run: Run) -> model.Report:
    """The report of a run in which no rank came as far as writing one."""
    return model.Report(
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.started)),
        duration_s=round(time.time() - run.started, 3),
        backend="unknown",
        device="unknown",
        world_size=run.ranks,
        hosts=[socket.gethostname()],
        profile=options.profile,
        facts=facts.about_host(),
        skipped=list(options.skipped),
        phases=progress.with_pending([], options.planned),
    )


def in_words(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


CRASHES = tuple(
    in_words(-number)
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
)


def _tail(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []
