"""Runs the smoke test on one host without torchrun: starts the ranks (launched_ranks.py), and reports
if rank 0 could not.

Imports no torch: it must be able to report that torch is broken.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..checks import expectation
from ..facts import environment as facts
from ..facts import libraries
from ..fs.files import read_text
from ..report import model, table
from . import last_states, out_folder, postmortem, reporter
from . import options as smoke_options
from .launched_ranks import LaunchedRanks, describe_exit, log_path
from .options import Options
from .outcome import Finding, Outcome, merge_equal
from .reporter import REPORT_NAME

RANKS_WITHOUT_GPU = 2
LOG_LINES = 20


def launch(options: Options, arguments: Sequence[str]) -> int:
    """Runs all ranks on this host. Returns 0 if the report is a success and every rank ended well,
    else 1."""
    ranks = options.ranks or default_ranks(options.backend)
    smoke_options.check_faults(options, ranks)
    options = smoke_options.for_world(options, ranks)
    _prepare(options.out)
    # While this is bound, no other program gets the port; the store may listen on it all the same
    # (SO_REUSEADDR, socket(7)), unless the fault busy-port listens here.
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        if options.fault("busy-port"):
            reserved.listen()
        launched = LaunchedRanks(options, arguments, ranks, reserved.getsockname()[1])
        reason = launched.wait()
    return _conclude(options, launched, reason)


def default_ranks(backend: str) -> int:
    return (backend != "gloo" and libraries.visible_gpus(os.environ)) or RANKS_WITHOUT_GPU


def _prepare(out: Path) -> None:
    """Deletes the files of an earlier run, which must not be taken for this run's."""
    try:
        out_folder.claim(out)
        for pattern in (
            REPORT_NAME,
            "rank*.log",
            "nccl*.log",
            "rank*.last-state.json",
            "rank*.location.json",
        ):
            for path in out.glob(pattern):
                path.unlink()
    except OSError as error:
        raise smoke_options.UsageError(f"--out {out} cannot be written: {error}") from error


def _conclude(options: Options, launched: LaunchedRanks, reason: str) -> int:
    for path in options.out.glob("rank*.location.json"):
        path.unlink()
    try:
        report = model.loads((options.out / REPORT_NAME).read_text())
    except (OSError, model.ReportUnreadable):
        # No rank got as far as writing one.
        report = model.Report(
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(launched.started)),
            duration_s=round(time.time() - launched.started, 3),
            backend="unknown",
            device="unknown",
            world_size=launched.ranks,
            hosts=[socket.gethostname()],
            profile=options.profile,
            facts=dict(facts.host_facts()),
            skipped=list(options.skipped),
            phases=reporter.with_pending([], options.planned),
        )
    failures = {rank: describe_exit(code) for rank, code in launched.codes.items() if code != 0}
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
        # Reports instead of rank 0, which could not.
        phase_name = pending or "teardown"
        findings = _failure_findings(options.out, launched, phase_name, reason)
        logs = {}
        for rank in launched.children:
            lines = read_text(log_path(options.out, rank)).splitlines()
            logs[str(rank)] = lines[-LOG_LINES:]
        outcome = Outcome(findings=findings, data={"logs": logs})
        duration_s = time.time() - launched.started
        # Rank 0 wrote the report when the last finished phase ended.
        phase_s = max(duration_s - report.duration_s, 0.0)
        report = replace(report, duration_s=round(duration_s, 3))
        failed, phase = reporter.with_failure(report, phase_name, outcome, phase_s)
        reporter.write_report(failed, options.out)
        print("\n".join(table.phase_lines(phase, table.terminal_width())), flush=True)
    return 1


def _failure_findings(
    out: Path, launched: LaunchedRanks, phase_name: str, reason: str
) -> tuple[Finding, ...]:
    # A rank that wrote its last state ended because of another one.
    stuck = [rank for rank in launched.children if last_states.state_path(out, rank).exists()]
    failures = {rank: text for rank, text in launched.failures.items() if rank not in stuck}
    # A rank that notices the end of the other ranks ends too, with 1: not the cause if there is
    # another.
    causes = {rank: text for rank, text in failures.items() if text != describe_exit(1)}
    findings = []
    for rank, failure in (causes or failures).items():
        finding_id = "rank-stopped" if failure == "is stopped" else "rank-died"
        message = f"its process {failure}"
        if failure == describe_exit(-signal.SIGKILL) and launched.oom_kills:
            finding_id, message = "rank-oom-killed", postmortem.describe_oom(launched.oom_kills)
        # A rank that crashed in facts did so while it imported torch: a child process tries again.
        elif phase_name == "facts" and failure != describe_exit(-signal.SIGKILL):
            error = facts.collect_in_child()["error"]
            if error:
                findings.append(replace(expectation.broken(error), ranks=(rank,)))
                continue
        findings.append(Finding(finding_id, message, (rank,)))
    if findings:
        return merge_equal(findings)
    if phase_name == "teardown" and stuck:
        return (Finding("rank-stuck", "it did not end after the last phase", tuple(stuck)),)
    finding_id = "interrupted" if reason.startswith("ended by") else "rank-died"
    return (Finding(finding_id, reason or "the ranks ended without a report"),)
