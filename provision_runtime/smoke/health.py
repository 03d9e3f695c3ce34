"""Whether this node has a fault that the smoke test can measure, in one line, within a deadline.

For programs that a scheduler runs on idle nodes. A fault is a finding about the node itself. That a
deadline passed, that the environment is wrong or that anything else went wrong is unknown: nobody
should take a node out of service for that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ..report import model
from ..report.findings import NODE_FAULTS

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
DEADLINE_S = 25.0
# The test ends itself so long before the deadline, to have time for its report.
REPORTING_S = 5.0


def check(deadline_s: float) -> str:
    """`pass`, `fail ID MESSAGE` or `unknown MESSAGE`."""
    # The test ends itself earlier, to have time for its report.
    limit_s = max(deadline_s - REPORTING_S, deadline_s / 2)
    with tempfile.TemporaryDirectory(prefix="provision-health-") as out:
        command = [sys.executable, "-I", "-B", str(Path(__file__).resolve().parent.parent), "smoke"]
        command += ["--out", out, "--profile", "quick", "--timeout", f"{limit_s:g}", "--strict"]
        # The facts alone need one rank, and no network.
        command += ["--only", "facts", "--ranks", "1"]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=out,
            start_new_session=True,
        ) as child:
            problem = "the test left no report"
            try:
                child.wait(timeout=deadline_s)
            except subprocess.TimeoutExpired:
                problem = f"it did not end within {deadline_s:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        try:
            return judge(model.loads((Path(out) / "report.json").read_text()))
        except (OSError, model.ReportUnreadable):
            return f"{UNKNOWN} {problem}"


def judge(report: model.Report) -> str:
    findings = [finding for phase in report.phases for finding in phase.findings]
    for finding in findings:
        if finding.verdict == model.FAIL and finding.id in NODE_FAULTS:
            return f"{FAIL} {finding.id} {' '.join(finding.message.split())}"
    if model.succeeded(report.verdict):
        return PASS
    ids = ", ".join(dict.fromkeys(finding.id for finding in findings)) or "the test did not finish"
    return f"{UNKNOWN} {ids}"
