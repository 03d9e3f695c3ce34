"""The course of a job on one node: compare facts with the other nodes, import torch, run the ranks,
pass signals on, and end with the others.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Dict, List, TypedDict

from ..comm import addresses, processes
from ..comm.addresses import interface_with
from ..dataclass import frozen
from ..facts import limits
from ..hang.model import Snapshot, from_json, to_json
from ..node.job_ranks import JOB_VARIABLE
from ..report.codec import decode
from ..report.text import format_count
from . import comparison
from .agent import BLOCKED, HUNG, STOPPING, Agent, start
from .channel import Channel, Head, Member, log
from .connection import Connection, Message, candidate_ports
from .errors import JobError, Stopped
from .first_failure import RankFailure, summary
from .watcher import Watcher, hang_page

# Holds the job's key, by which its nodes recognize each other.
KEY_VARIABLE = "PROVISION_JOB_KEY"
# How long torchrun may take to end its ranks (it gives them 30 s after SIGTERM).
ENDING_S = 45.0
# torch's own rendezvous starts when every node has imported torch, so it takes moments.
RENDEZVOUS_S = 900
# How long node 0 waits for the others' failures, and they for its summary: longer than torchrun takes
# to end ranks that do not wait in the kernel.
GATHER_S = 40.0
# Topics of messages while the ranks run and when they have ended.
FAILURES, SILENCE = "failures", "silence"
LOST = "the node is gone"
NO_SIGNAL = 0
FAILED = 1


class NodeReport(TypedDict):
    """What a node sends node 0 before the job starts."""

    name: str
    facts: Dict[str, str]
    problems: List[str]


@frozen
class JobOptions:
    """The part of one node.

    id: of this start of the job. names: of all nodes, in the order of their numbers; () means the
    numbers. key: by which they recognize each other. ranks: processes of this node; 0 runs the command
    once, without torch. wait_s: for the other nodes. saves: the ranks save a checkpoint and end when
    they get USR1. hang_after_s, on_hang: as command.py has them. shares_log: all nodes write to one
    log, so that one of them reports what is true of all.
    """

    id: str
    command: tuple[str, ...]
    nodes: int = 1
    node: int = 0
    name: str = ""
    names: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    ranks: int = 0
    gpus: int = 0
    lock: str | None = None
    wait_s: float = 300.0
    saves: bool = False
    hang_after_s: float = 0.0
    on_hang: str = "report"
    shares_log: bool = False
    key: bytes = b""

    @property
    def script(self) -> str | None:
        """The file that the ranks run."""
        return self.command[0] if self.ranks and self.command[0] != "-m" else None


def run(options: JobOptions) -> int:
    """The job's part on this node. Returns the exit code."""
    for number in (*STOPPING, signal.SIGUSR1):
        signal.signal(number, _raise_stopped)
    try:
        with contextlib.closing(_open(options)) as channel:
            try:
                _compare(options, channel)
                return _run_command(options, channel)
            except Stopped as stop:
                channel.announce_stop(stop.number)
                raise
    except JobError as error:
        if not (error.is_remote and options.shares_log):
            log(f"{error}; the job ends here")
        return FAILED
    except Stopped as stop:
        log(f"{options.name}: stopped by {stop} before the ranks ran")
        return 0 if stop.number == signal.SIGUSR1 else 128 + stop.number
    finally:
        # Python resets handlers when it ends. A signal that arrives then would kill this process,
        # and a job that has saved would count as failed. Ignored signals stay ignored.
        for number in (*STOPPING, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)


def _raise_stopped(number: int, _: object) -> None:
    raise Stopped(number)


def _open(options: JobOptions) -> Channel:
    if options.nodes == 1:
        return Channel()
    ports = candidate_ports(options.key, options.id)
    if options.node == 0:
        numbers = tuple(f"node {number}" for number in range(options.nodes))
        return Head(options.id, options.names or numbers, ports, options.key)
    return Member(
        options.id,
        options.node,
        options.nodes,
        options.name,
        options.heads,
        ports,
        options.wait_s,
        options.key,
    )


def _compare(options: JobOptions, channel: Channel) -> None:
    """Raises JobError on every node if one cannot run the job, or differs."""
    node: NodeReport = {
        "name": options.name,
        "facts": comparison.collect(),
        "problems": comparison.node_problems(
            gpus=options.gpus, lock=options.lock, script=options.script
        ),
    }
    channel.exchange("comparing facts", node, _judge, options.wait_s)


def _judge(nodes: Sequence[NodeReport]) -> None:
    names = [node["name"] for node in nodes]
    if len(set(names)) < len(names):
        # Several containers of one host have its name.
        names = [f"node {number}" for number in range(len(names))]
    problems = [f"{node['name']}: {problem}" for node in nodes for problem in node["problems"]]
    problems += comparison.differences({name: node["facts"] for name, node in zip(names, nodes)})
    if problems:
        raise JobError("; ".join(problems))
    if len(nodes) > 1:
        log(f"{len(nodes)} nodes compared: alike")


def _run_command(options: JobOptions, channel: Channel) -> int:
    # The environment of the command: what activation would set, and how to reach the others.
    variables = dict(os.environ)
    # The command needs no key, and may print its environment into a log that others read.
    variables.pop(KEY_VARIABLE, None)
    variables[JOB_VARIABLE] = options.id
    variables["CONDA_PREFIX"] = sys.prefix
    programs = str(Path(sys.executable).parent)
    if variables.get("PATH", "").split(":")[0] != programs:
        variables["PATH"] = f"{programs}:{variables.get('PATH', os.defpath)}"
    local = channel.local_address
    interface = interface_with(local) if local else None
    if interface and "GLOO_SOCKET_IFNAME" not in variables:
        # Else Gloo takes the address of the host's own name, which is often a loopback address.
        variables["GLOO_SOCKET_IFNAME"] = interface
        if options.node == 0 or not options.shares_log:
            log(f"GLOO_SOCKET_IFNAME={interface}, which leads to the other nodes")
    if options.ranks > 0 and "OMP_NUM_THREADS" not in variables:
        # torchrun would set 1.
        threads = int(limits.cpus()["allowed"] // options.ranks)
        variables["OMP_NUM_THREADS"] = str(max(1, threads))
    if options.ranks == 0:
        variables.update(
            NNODES=str(options.nodes), NODE_RANK=str(options.node), MASTER_ADDR=channel.address
        )
        port = channel.exchange("starting", None, lambda _: addresses.free_port(), options.wait_s)
        variables["MASTER_PORT"] = str(port)
        with _signals_blocked():
            child = start(list(options.command), variables)
            supervisor = _Supervisor(options, channel, child)
        return supervisor.wait()
    agent = Agent(variables, options.name)
    try:
        import_s = agent.import_s()
        if import_s is None:
            message = f"{options.name}: torch cannot be imported, see above"
            channel.announce_end(message)
            raise JobError(message)
        address, port = channel.exchange(
            "importing torch", import_s, partial(_choose_rendezvous, channel), options.wait_s
        )
        with _signals_blocked():
            agent.order(_torchrun_arguments(options, address, port))
            supervisor = _Supervisor(options, channel, agent.child, agent.failures)
    except BaseException:
        agent.abandon()
        raise
    return supervisor.wait()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Signals that come in this block are delivered at its end.

    Before the command runs, a signal ends this node's part; afterwards the command must have the
    time to save. Between its start and the supervisor's handlers it would be killed without.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)


def _choose_rendezvous(channel: Channel, import_times: Sequence[float]) -> tuple[str, int]:
    """Node 0's decision, when every node has imported torch: address and port of torch's store."""
    slowest = max(import_times)
    log(f"torch imported in {slowest:.1f} s on the slowest of {len(import_times)} nodes")
    return channel.address, addresses.free_port()


def _torchrun_arguments(options: JobOptions, address: str, port: int) -> list[str]:
    """Static rendezvous: rank 0 is on node 0, the others follow in the scheduler's order, and no
    node looks up its own name. With underscores every version of torch knows the options."""
    return [
        f"--nnodes={options.nodes}",
        f"--node_rank={options.node}",
        f"--nproc_per_node={options.ranks}",
        f"--master_addr={address}",
        f"--master_port={port}",
        f"--rdzv_id={options.id}",
        f"--rdzv_conf=timeout={RENDEZVOUS_S}",
        "--max_restarts=0",
        *options.command,
    ]


class _Supervisor:
    """Waits for the command to end; until then, passes signals to the ranks and exchanges ends and
    stops with the other nodes."""

    def __init__(
        self,
        options: JobOptions,
        channel: Channel,
        child: subprocess.Popen[bytes],
        failures: Callable[[], object] = list,
    ) -> None:
        self._options, self._channel, self._child = options, channel, child
        self._failures = failures
        # How ranks ended, and what those do that are silent. None is this node.
        self._reports: dict[Connection | None, list[RankFailure]] = {}
        self._silent: dict[Connection | None, Snapshot] = {}
        self._change: Snapshot | None = None
        self._hang_status = 0
        self._is_hang_reported = False
        self._stopped_by: int | None = None
        self._local_stops = 0
        self._end = ""
        self._kill_at: float | None = None
        self._finished: list[Connection] = []
        self._wakeup, self._wakeup_end = socket.socketpair()
        for end in (self._wakeup, self._wakeup_end):
            end.setblocking(False)
        channel.selector.register(self._wakeup, selectors.EVENT_READ, self._handle_signals)
        signal.set_wakeup_fd(self._wakeup_end.fileno(), warn_on_full_buffer=False)
        for number in (*STOPPING, signal.SIGUSR1, signal.SIGCHLD):
            # Each signal arrives as a byte; the handler itself has nothing to do.
            signal.signal(number, lambda *_: None)
        if options.ranks and options.hang_after_s:
            Watcher(
                child.pid, options.hang_after_s, self._announce_change, is_whole_job=False
            ).start()

    def _announce_change(self, snapshot: Snapshot | None) -> None:
        """In the watcher's thread."""
        self._change = snapshot
        self._wakeup_end.send(bytes([NO_SIGNAL]))

    def wait(self) -> int:
        """The exit code of this node."""
        while self._child.poll() is None:
            timeout_s = None
            if self._kill_at is not None:
                timeout_s = max(0.0, self._kill_at - time.monotonic())
            self._handle_event(timeout_s)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                os.killpg(self._child.pid, signal.SIGKILL)
                self._kill_at = None
        return self._exit_code(self._child.returncode)

    def _handle_event(self, timeout_s: float | None) -> None:
        """Signals, and what other nodes announce."""
        event = self._channel.next_event(timeout_s)
        if event is None:
            return
        connection, message = event
        if message is None:
            is_known = connection in self._finished or connection in self._reports
            if not (is_known or self._end) and self._stopped_by is None:
                first = connection.number * self._options.ranks
                self._reports[connection] = [
                    RankFailure(first, connection.name, time.time(), error=LOST, chain=LOST)
                ]
                self._end_with(f"{connection.name} is gone")
        elif message.done is not None:
            self._finished.append(connection)
        elif message.topic == FAILURES:
            self._add_report(connection, message.payload)
        elif message.topic == SILENCE:
            self._handle_silence(connection, message.payload and from_json(message.payload))
        elif message.end is not None:
            self._end_with(message.end)
        elif message.stop is not None:
            self._stop(message.stop)

    def _exit_code(self, status: int) -> int:
        name = self._options.name
        if self._end:
            if not self._options.shares_log:
                log(f"{self._end}; {name} ends with it")
            self._report_failures()
            return self._hang_status or FAILED
        if self._stopped_by is not None and self._stopped_by in STOPPING:
            return 128 + self._stopped_by
        if status == 0:
            self._channel.send_to_all(Message(done=True))
            return 0
        code = 128 - status if status < 0 else status
        message = f"{name}: the command ended with status {code}"
        log(message)
        self._channel.announce_end(message)
        self._report_failures()
        return code

    def _report_failures(self) -> None:
        """Node 0 says which rank of all nodes failed first. The others do not end before it has: Slurm
        would kill it."""
        options, failures = self._options, self._failures()
        if options.ranks == 0:
            return
        self._channel.send_to_all(Message(topic=FAILURES, payload=failures))
        self._add_report(None, failures)
        deadline = time.monotonic() + GATHER_S
        while self._has_unreported() and time.monotonic() < deadline:
            self._handle_event(max(0.0, deadline - time.monotonic()))
        if options.node == 0 and not self._hang_status:  # else it was this that ended the ranks
            rows = [row for rows in self._reports.values() for row in rows]
            log(*summary(rows, options.nodes * options.ranks, options.nodes))

    def _add_report(self, origin: Connection | None, failures: object) -> None:
        self._reports[origin] = decode(List[RankFailure], failures, FAILURES)

    def _has_unreported(self) -> bool:
        """Whether a node that this one is connected to may still report; to a member, node 0 closes."""
        known = self._reports if self._options.node == 0 else ()
        return any(c not in known and c not in self._finished for c in self._channel.connections)

    def _handle_silence(self, origin: Connection | None, snapshot: Snapshot | None) -> None:
        """The ranks of a node fell silent, or work again (None). Node 0 judges when all are silent,
        because the ranks of one node may wait for a rank of another that works."""
        options = self._options
        if options.node > 0:
            payload = snapshot and to_json(snapshot)
            self._channel.send_to_all(Message(topic=SILENCE, payload=payload))
            return
        if snapshot is None:
            self._silent.pop(origin, None)
            return
        self._silent[origin] = snapshot
        is_whole = len(self._silent) + len(self._finished) == options.nodes
        if self._is_hang_reported or not is_whole:
            return
        snapshots = list(self._silent.values())
        lines, is_ended = hang_page(snapshots, options.hang_after_s, options.on_hang)
        self._is_hang_reported = bool(lines)
        log(*lines)
        if is_ended:
            self._hang_status = HUNG
            self._end_with(f"the job hangs, and --on-hang says {options.on_hang}")

    def _handle_signals(self) -> None:
        for number in self._wakeup.recv(64):
            if number == NO_SIGNAL:
                self._handle_silence(None, self._change)
            if number in (NO_SIGNAL, signal.SIGCHLD):
                continue
            self._local_stops += number in STOPPING
            self._stop(number)
            if self._local_stops > 1:
                self._terminate()

    def _end_with(self, reason: str) -> None:
        """End because another node did."""
        if not self._end:
            self._end = reason
            self._channel.announce_end(reason)
            self._terminate()

    def _stop(self, number: int) -> None:
        """A signal came to this node, or to another one, which passed it on."""
        if self._stopped_by == number:
            return
        self._stopped_by = number
        self._channel.announce_stop(number)
        if number == signal.SIGUSR1 or self._options.saves:
            # USR1 to the ranks, which are torchrun's children, or to the command itself.
            targets = (
                processes.children(self._child.pid) if self._options.ranks else [self._child.pid]
            )
            for target in targets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signal.SIGUSR1)
            noun = format_count(len(targets), "rank") if self._options.ranks else "the command"
            log(f"{self._options.name}: USR1 to {noun}")
        else:
            self._terminate()

    def _terminate(self) -> None:
        if self._kill_at is None:
            self._child.terminate()
            self._kill_at = time.monotonic() + ENDING_S
