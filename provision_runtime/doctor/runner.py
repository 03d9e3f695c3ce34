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
from ..report.diagnosis import Diagnosis, ProbeRun
from .probe import ProbeResult, observation, observe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..report.diagnosis import ObservedFinding
    from .machine import Machine
    from .probe import Probe

READ_BYTES = 1 << 16


@dataclass
class _Child:
    """A probe's process. data: what it wrote. waits_in: the function of the kernel, of one that did
    not end in time."""

    probe: Probe
    pid: int
    descriptor: int
    started: float
    data: bytes = b""
    duration_s: float = 0.0
    waits_in: str = ""

    @property
    def result(self) -> ProbeResult:
        try:
            result: ProbeResult = json.loads(self.data)
            return result
        except ValueError:
            return {"failure": "its process was killed"}


def diagnose(machine: Machine, probes: Sequence[Probe]) -> Diagnosis:
    """Run probes and join their results, in the order of the probes. Those without a result come
    first, as one finding."""
    started = time.monotonic()
    children = [_start(machine, probe) for probe in probes]
    _wait(children)
    findings: list[ObservedFinding] = []
    notes: list[list[str]] = []
    runs = []
    failed: dict[str, list[str]] = {}  # names of probes by the reason
    late = [child for child in children if child.waits_in]
    for child in children:
        name, state, result = child.probe.name, "done", child.result
        if child in late:
            state = "late"
        elif "failure" in result:
            state = "failed"
            failed.setdefault(result["failure"], []).append(name)
        else:
            findings += result["findings"]
            notes += [note for note in result["notes"] if note not in notes]
        runs.append(ProbeRun(name=name, state=state, duration_s=child.duration_s))
    # The cause is often one for all: a file server, or a broken machine.
    lost = []
    for reason, names in failed.items():
        message = f"no result from {', '.join(names)}: {reason}"
        lost.append(observation("probe-failed", message, "probe", ", ".join(names)))
    if late:
        limit_s = max(child.probe.deadline_s for child in late)
        names = [child.probe.name for child in late]
        message = f"no result within {limit_s:g} s: {', '.join(names)}"
        waits = ", ".join(child.waits_in for child in late)
        lost.append(observation("probe-late", message, "/proc/PID/wchan", waits))
    findings = lost + findings
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


def _wait(children: Sequence[_Child]) -> None:
    """Read what the children write until each has ended, or its time is over."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.descriptor, selectors.EVENT_READ)
        running = list(children)
        while running:
            next_end = min(child.started + child.probe.deadline_s for child in running)
            ready = selector.select(max(0.0, next_end - time.monotonic()))
            readable = {key.fd for key, _ in ready}
            for child in list(running):
                passed_s = time.monotonic() - child.started
                if child.descriptor in readable:
                    data = os.read(child.descriptor, READ_BYTES)
                    child.data += data
                    if data:
                        continue
                    os.waitpid(child.pid, 0)
                elif passed_s < child.probe.deadline_s:
                    continue
                else:
                    child.waits_in = _waits_in(child.pid)
                    # Without waiting: it may be stuck in the kernel.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(child.pid, signal.SIGKILL)
                    os.kill(child.pid, signal.SIGKILL)
                child.duration_s = round(passed_s, 3)
                selector.unregister(child.descriptor)
                os.close(child.descriptor)
                running.remove(child)


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
