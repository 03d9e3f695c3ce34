"""Starts the ranks of one host without torchrun, and ensures that none outlives the run.

Owns processes. Imports no torch: it must be able to report that torch is broken. Rank 0 reports;
the launcher reports only if rank 0 could not.
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
from typing import TYPE_CHECKING

from .. import fs
from ..comm import processes
from ..facts import environment as facts
from ..facts import libraries
from ..report import model, table
from . import options as smoke_options
from . import postmortem, rank_env, reporter, runner
from .checks import expectation
from .outcome import Finding, Outcome, merge_equal
from .reporter import REPORT_NAME
from .watchdog import PEER_LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .options import Options

LOOPBACK = "127.0.0.1"
RANKS_WITHOUT_GPU = 2
PORT_ATTEMPTS = 5
# Rarely: polling takes time from a core that is being measured.
POLL_S = 0.1
# How long rank 0 may go on after a rank failed: it may find that out itself and report. When it is
# ended, it still collects the other ranks' last states (postmortem.GRACE_S) and writes the report.
GRACE_S = 4.0
# Once rank 0 has ended, only the other ranks' last states are awaited.
SHORT_GRACE_S = 1.2
PR_SET_PDEATHSIG = 1
LOG_LINES = 20
NO_SUCH_HOST = "no-such-host.invalid"  # RFC 6761: never resolves


def launch(
    options: Options, arguments: Sequence[str], choose_port: Callable[[], int] | None = None
) -> int:
    """Runs all ranks on this host. Returns 0 if the report is a success and every rank ended well,
    else 1."""
    ranks = options.ranks or default_ranks(options.backend)
    smoke_options.check_faults(options, ranks)
    options = smoke_options.for_world(options, ranks)
    _prepare(options.out)
    _prepare_junit(options.junit)
    for _ in range(PORT_ATTEMPTS):
        with _store_port(options, choose_port or free_port) as port:
            launched = LaunchedRanks(options, arguments, ranks, port)
            reason = launched.wait()
        if launched.codes.get(0) != runner.PORT_BUSY:
            break
    return _conclude(options, launched, reason)


@contextmanager
def _store_port(options: Options, choose: Callable[[], int]) -> Iterator[int]:
    """A port for the store. With the fault busy-port, this process listens on it."""
    port = choose()
    if not options.fault("busy-port"):
        yield port
        return
    with socket.create_server(("", port)):
        yield port


def default_ranks(backend: str) -> int:
    """One per visible GPU, unless the backend is Gloo."""
    gpus = len(libraries.device_nodes())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = min(gpus, len([name for name in visible.split(",") if name not in ("", "-1")]))
    return gpus if gpus and backend != "gloo" else RANKS_WITHOUT_GPU


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class LaunchedRanks:
    """The ranks as processes, from the first start to the last end."""

    def __init__(self, options: Options, arguments: Sequence[str], ranks: int, port: int) -> None:
        self._out = options.out
        self._ends_at = time.monotonic() + options.timeout_s
        self._received: int | None = None
        self.started = time.time()
        self.ranks = ranks
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        # How the ranks ended that ended by themselves.
        self.failures: dict[int, str] = {}
        self._previous_handlers = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        master = NO_SUCH_HOST if options.fault("unresolvable-master") else LOOPBACK
        for rank in range(ranks):
            if not options.fault("absent", rank):
                environment = _rank_environment(rank, ranks, master, port, self._ends_at)
                self.children[rank] = self._start(arguments, environment, rank)

    @property
    def codes(self) -> dict[int, int | None]:
        return {rank: child.poll() for rank, child in self.children.items()}

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
        self, arguments: Sequence[str], environment: dict[str, str], rank: int
    ) -> subprocess.Popen[bytes]:
        package = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, *_interpreter_flags(), package, *arguments]
        with log_path(self._out, rank).open("wb") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=_bind_to_parent(os.getpid()),
            )

    def _watch(self) -> str:
        """Returns when all ranks have ended, or with the reason not to wait any longer."""
        failed_since: float | None = None
        while self._living():
            time.sleep(POLL_S)
            now = time.monotonic()
            failures = {}
            for rank, code in self.codes.items():
                if code not in (None, 0):
                    failures[rank] = describe_exit(code)
            if failures and failed_since is None:
                failed_since = now
                self.failures.update(failures)
            if self.codes.get(0) == runner.PORT_BUSY:
                self._kill()
            elif self._received is not None:
                return f"ended by {signal.Signals(self._received).name}"
            elif failed_since is not None and now > failed_since + self._grace_s():
                rank, failure = next(iter(failures.items()))
                return f"rank {rank} {failure}"
            elif now > self._ends_at + GRACE_S:
                return "the time of the whole run is over"
        return ""

    def _stop(self) -> None:
        """Asks the remaining ranks for their last states and a report; then kills what is left."""
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
        self._kill()

    def _kill(self) -> None:
        for child in self._living().values():
            child.kill()
        for child in self.children.values():
            child.wait()

    def _grace_s(self) -> float:
        """Rank 0 needs longer than the others: it reports for all."""
        first = self.children.get(0)
        if first is None or first.poll() is not None or _is_stopped(first):
            return SHORT_GRACE_S
        return GRACE_S

    def _living(self) -> dict[int, subprocess.Popen[bytes]]:
        return {rank: child for rank, child in self.children.items() if child.poll() is None}

    def _receive(self, number: int, _: object) -> None:
        self._received = number


def _is_stopped(child: subprocess.Popen[bytes]) -> bool:
    return processes.state(processes.identity(child.pid)) == processes.STOPPED


def _interpreter_flags() -> list[str]:
    """The ranks must see the same modules as this process."""
    flags = []
    if sys.flags.dont_write_bytecode:
        flags.append("-B")
    if sys.flags.no_user_site:
        flags.append("-s")
    if sys.flags.ignore_environment:
        flags.append("-E")
    if sys.flags.isolated:
        flags.append("-I")
    return flags


def _rank_environment(
    rank: int, ranks: int, master: str, port: int, ends_at: float
) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
        rank_env.ENDS_AT: repr(ends_at),
        # As torchrun does: ranks that each use all cores slow one another down.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _bind_to_parent(parent: int) -> Callable[[], None]:
    """For the child between fork and exec: the kernel kills it when this process ends, however it
    ends."""
    libc = ctypes.CDLL(None)

    def bind() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def log_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.log"


def _prepare(out: Path) -> None:
    """Deletes the files of an earlier run, which must not be taken for this run's."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for pattern in (REPORT_NAME, "rank*.log", "rank*.stuck.json", "rank*.at.json"):
            for path in out.glob(pattern):
                path.unlink()
    except OSError as error:
        raise smoke_options.UsageError(f"--out {out} cannot be written: {error}") from error


def _prepare_junit(path: Path | None) -> None:
    """Empties the file, so that no CI service takes an earlier run's for this run's success."""
    if path is None:
        return
    try:
        fs.atomic_write(path, b"")
    except OSError as error:
        raise smoke_options.UsageError(
            f"--junit {path} cannot be written: {error.strerror}"
        ) from error


def _conclude(options: Options, launched: LaunchedRanks, reason: str) -> int:
    for path in options.out.glob("rank*.at.json"):
        path.unlink()
    report = _read(options.out / REPORT_NAME) or _empty_report(options, launched)
    failures = {}
    for rank, code in launched.codes.items():
        if code != 0:
            failures[rank] = describe_exit(code)
    pending = reporter.first_pending(report)
    succeeded = model.succeeded(report.verdict)
    if pending is None and not failures:
        return 0 if succeeded else 1
    # A rank also ends with 1 if the report is complete and its verdict is fail or unknown.
    is_reported = report.verdict == model.FAIL or (pending is None and not succeeded)
    for rank, failure in failures.items():
        if rank in launched.failures or not is_reported:
            print(f"rank {rank} {failure}; see {log_path(options.out, rank)}", file=sys.stderr)
    if not is_reported:
        _report_failure(options, launched, report, pending or "teardown", reason)
    return 1


def _report_failure(
    options: Options,
    launched: LaunchedRanks,
    report: model.Report,
    phase_name: str,
    reason: str,
) -> None:
    """Reports in place of rank 0, which could not."""
    findings = _failure_findings(options.out, launched, phase_name, reason)
    logs = {str(rank): _tail(log_path(options.out, rank)) for rank in launched.children}
    outcome = Outcome(findings=findings, data={"logs": logs})
    duration_s = time.time() - launched.started
    failed = reporter.with_failure(report, phase_name, outcome, duration_s)
    reporter.write_report(failed, options.out / REPORT_NAME, options.junit)
    phase = next(phase for phase in failed.phases if phase.name == phase_name)
    print("\n".join(table.phase_lines(asdict(phase), table.terminal_width())), flush=True)


def _failure_findings(
    out: Path, launched: LaunchedRanks, phase_name: str, reason: str
) -> tuple[Finding, ...]:
    # A rank that wrote its last state ended because of another one.
    stuck = [rank for rank in launched.children if postmortem.state_path(out, rank).exists()]
    failures = {rank: text for rank, text in launched.failures.items() if rank not in stuck}
    # A rank that finds the other ranks gone ends by itself, with 1: not the cause if there is
    # another.
    causes = {rank: text for rank, text in failures.items() if text != describe_exit(1)}
    failures = causes or failures
    if failures:
        return merge_equal([_cause(phase_name, rank, text) for rank, text in failures.items()])
    if phase_name == "teardown" and stuck:
        return (Finding("rank-stuck", "it did not end after the last phase", tuple(stuck)),)
    finding_id = "interrupted" if reason.startswith("ended by") else "rank-died"
    return (Finding(finding_id, reason or "the ranks ended without a report"),)


def _cause(phase_name: str, rank: int, failure: str) -> Finding:
    """A rank that crashed in facts did so while it imported torch: the import is tried again in a
    separate process."""
    if phase_name == "facts" and failure in CRASHES:
        error = facts.collect_in_child()["error"]
        if error:
            return replace(expectation.broken(error), ranks=(rank,))
    finding_id = "rank-stopped" if failure == "is stopped" else "rank-died"
    return Finding(finding_id, f"its process {failure}", (rank,))


def _read(path: Path) -> model.Report | None:
    try:
        return model.loads(path.read_text())
    except (OSError, model.ReportUnreadable):
        return None


def _empty_report(options: Options, launched: LaunchedRanks) -> model.Report:
    """The report of a run in which no rank got as far as writing one."""
    return model.Report(
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(launched.started)),
        duration_s=round(time.time() - launched.started, 3),
        backend="unknown",
        device="unknown",
        world_size=launched.ranks,
        hosts=[socket.gethostname()],
        profile=options.profile,
        facts=facts.about_host(),
        skipped=list(options.skipped),
        phases=reporter.with_pending([], options.planned),
    )


def describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


CRASHES = tuple(
    describe_exit(-number)
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
)


def _tail(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []
