"""Runs probes side by side, each in a child process that is left behind if it hangs.

Processes, not threads: a thread that waits for a dead file server in the kernel cannot be ended,
and keeps its process, and the pipes that others read from it, alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..report import diagnosis
from ..report.diagnosis import Diagnosis, Evidence, ObservedFinding, ProbeRun
from ..report.findings import Finding
from .probe import Observation, ProbeResult, observe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .machine import Machine
    from .probe import Probe

READ_BYTES = 1 << 16


@dataclass
class _Child:
    probe: Probe
    pid: int
    descriptor: int
    started: float
    ends_at: float
    data: bytes = b""


def diagnose(machine: Machine, probes: Sequence[Probe]) -> Diagnosis:
    """Run probes and join their results, in the order of the probes. Those without a result come
    first, as one finding."""
    started = time.monotonic()
    results, durations, waits = _run_isolated(machine, probes)
    findings: list[ObservedFinding] = []
    notes: list[list[str]] = []
    runs = []
    overdue = []
    failed: dict[str, list[str]] = {}  # names of probes by the reason
    for probe in probes:
        state, duration_s = "done", durations.get(probe.name, probe.limit_s(machine))
        result = results.get(probe.name, {"failure": "its process was killed"})
        if probe.name in waits:
            state = "late"
            overdue.append(probe)
        elif "failure" in result:
            state = "failed"
            failed.setdefault(result["failure"], []).append(probe.name)
        else:
            findings += result["findings"]
            notes += [note for note in result["notes"] if note not in notes]
        runs.append(ProbeRun(name=probe.name, state=state, duration_s=duration_s))
    if overdue:
        findings.insert(0, _overdue_finding(machine, overdue, waits))
    findings = [_failed_finding(names, reason) for reason, names in failed.items()] + findings
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
        probes=runs,
    )


def _run_isolated(
    machine: Machine, probes: Sequence[Probe]
) -> tuple[dict[str, ProbeResult], dict[str, float], dict[str, str]]:
    """The results of the probes that returned one, the seconds of those that ended, and in which
    function of the kernel each of the others waits."""
    results: dict[str, ProbeResult] = {}
    durations: dict[str, float] = {}
    waits: dict[str, str] = {}
    with selectors.DefaultSelector() as selector:
        for probe in probes:
            child = _start(machine, probe)
            selector.register(child.descriptor, selectors.EVENT_READ, child)
        while selector.get_map():
            for child in [key.data for key in selector.get_map().values()]:
                if time.monotonic() >= child.ends_at:
                    selector.unregister(child.descriptor)
                    os.close(child.descriptor)
                    waits[child.probe.name] = _waits_in(child.pid)
                    # Kill a probe and its children, without waiting: it may be stuck in the
                    # kernel.
                    try:
                        os.killpg(child.pid, signal.SIGKILL)
                    except (ProcessLookupError, PermissionError):
                        os.kill(child.pid, signal.SIGKILL)
            if not selector.get_map():
                break
            next_end = min(key.data.ends_at for key in selector.get_map().values())
            for key, _ in selector.select(max(0.0, next_end - time.monotonic())):
                child = key.data
                data = os.read(child.descriptor, READ_BYTES)
                child.data += data
                if data:
                    continue
                selector.unregister(child.descriptor)
                os.close(child.descriptor)
                os.waitpid(child.pid, 0)
                durations[child.probe.name] = round(time.monotonic() - child.started, 3)
                with contextlib.suppress(ValueError):  # it was killed before its last byte
                    results[child.probe.name] = json.loads(child.data)
    return results, durations, waits


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
    started = time.monotonic()
    return _Child(probe, pid, reading, started, started + probe.limit_s(machine))


def _null() -> int:
    """A descriptor that reads as empty, even where /dev/null is broken."""
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:
        reading, writing = os.pipe()
        os.close(writing)
        return reading


def _failed_finding(names: Sequence[str], reason: str) -> ObservedFinding:
    """One for all that failed for one reason: a broken machine fails many."""
    message = f"no result from {', '.join(names)}: {reason}"
    evidence = [Evidence(source="probe", value=name) for name in names]
    return Observation(Finding("probe-failed", message), evidence).reported()


def _overdue_finding(
    machine: Machine, probes: Sequence[Probe], waits: Mapping[str, str]
) -> ObservedFinding:
    """One finding for all: the cause is often one file server."""
    limit_s = max(probe.limit_s(machine) for probe in probes)
    message = f"no result within {limit_s:g} s: {', '.join(probe.name for probe in probes)}"
    evidence = []
    for probe in probes:
        source = f"/proc/PID/wchan, {probe.name}"
        evidence.append(Evidence(source=source, value=waits[probe.name]))
    return Observation(Finding("probe-late", message), evidence).reported()


def _waits_in(pid: int) -> str:
    """Such as fuse_get_req (FUSE) or rpc_wait_bit_killable (NFS)."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            return file.read() or "unknown"
    except OSError:
        return "unknown"
