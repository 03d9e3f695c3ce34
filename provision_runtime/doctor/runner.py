"""Runs probes side by side, each in a child process that is left behind if it hangs.

Processes, not threads: a thread that waits for a dead file server in the kernel cannot be ended,
and keeps its process, and the pipes that others read from it, alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from ..dataclass import frozen
from ..report import diagnosis
from ..report.diagnosis import Diagnosis
from ..report.findings import CATALOG
from .probe import Probe, ProbeResult, observation, observe

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from .machine import Machine

READ_BYTES = 1 << 16
# After its deadline, a probe that was waiting to write may go on.
GRACE_S = 0.05


@frozen
class _Child:
    """A probe's process, and where it writes."""

    probe: Probe
    pid: int
    descriptor: int
    started: float


def diagnose(
    machine: Machine, probes: Sequence[Probe], only: Container[str] = CATALOG
) -> Diagnosis:
    """Run probes and join their results, in the order of the probes. Those without a result come
    first, as one finding. only: ids of findings."""
    started = time.monotonic()
    children = [_start(machine, probe) for probe in probes]
    results = list(map(_result, children))
    names_of: dict[str, list[str]] = {}  # of probes without a result, by the reason
    for probe, result in zip(probes, results):
        if "failure" in result:
            names_of.setdefault(result["failure"], []).append(probe.name)
    # The cause is often one for all: a file server, or a broken machine.
    findings = []
    for reason, names in names_of.items():
        findings.append(
            observation(
                "probe-failed",
                f"no result from {', '.join(names)}: {reason}",
                "probe",
                ", ".join(names),
            )
        )
    timed_out = [
        (probe, result["waits_in"])
        for probe, result in zip(probes, results)
        if "waits_in" in result
    ]
    if timed_out:
        limit_s = max(probe.deadline_s for probe, _ in timed_out)
        message = (
            f"no result within {limit_s:g} s: {', '.join(probe.name for probe, _ in timed_out)}"
        )
        waits = ", ".join(waits_in for _, waits_in in timed_out)
        findings.append(observation("probe-late", message, "/proc/PID/wchan", waits))
    notes: list[list[str]] = []
    for result in results:
        findings += [item for item in result.get("findings", ()) if item["id"] in only]
        notes += [note for note in result.get("notes", ()) if note not in notes]
    return Diagnosis(
        schema=diagnosis.SCHEMA,
        kind=diagnosis.KIND,
        verdict=diagnosis.verdict_of(findings),
        host=os.uname().nodename,
        prefix=machine.prefix,
        is_root=os.geteuid() == 0,
        duration_s=round(time.monotonic() - started, 3),
        findings=findings,
        notes=notes,
        probes=len(probes),
    )


def _result(child: _Child) -> ProbeResult:
    """What a probe's process writes until its time is over; then it is killed."""
    end, data = child.started + child.probe.deadline_s, b""
    while True:
        left_s = max(GRACE_S, end - time.monotonic())
        is_late = not select.select([child.descriptor], [], [], left_s)[0]
        part = b"" if is_late else os.read(child.descriptor, READ_BYTES)
        data += part
        if not part:
            break
    os.close(child.descriptor)
    if is_late:
        waits_in = _waits_in(child.pid)
        # Without waiting: it may be stuck in the kernel.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        os.kill(child.pid, signal.SIGKILL)
        return {"waits_in": waits_in}
    os.waitpid(child.pid, 0)
    try:
        result: ProbeResult = json.loads(data)
    except ValueError:
        result = {"failure": "its process was killed"}
    return result


def _start(machine: Machine, probe: Probe) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            # A probe that hangs must not hold the terminal or pipe of the reader of our output.
            null = _null()
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            result: ProbeResult
            try:
                result = observe(probe, machine)
            except Exception as error:  # one probe's mistake must not cost the others
                result = {"failure": f"{type(error).__name__}: {error}"}
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(result).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return _Child(probe, pid, reading, time.monotonic())


def _null() -> int:
    """A descriptor that reads as empty, even where /dev/null is broken."""
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:
        reading, writing = os.pipe()
        os.close(writing)
        return reading


def _waits_in(pid: int) -> str:
    """Such as fuse_get_req (FUSE) or rpc_wait_bit_killable (NFS)."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            return file.read() or "unknown"
    except OSError:
        return "unknown"
