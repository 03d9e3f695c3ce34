"""Node sets, the user's node groups, and one command on many nodes: the only module that calls
ClusterShell.

ssh is the user's own: configuration, jump hosts, agents, Kerberos. It never asks: neither for a
password nor about a host key.
"""

from __future__ import annotations

import logging
import math
import os
import re
import resource
import shlex
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from provision.core import process
from provision.core.errors import InvalidSpec, ToolMissing

Worker = Literal["ssh", "exec"]
# More is a typo; and ClusterShell would make every name before we could count them.
MAX_NODES = 100_000
# The digits of a number in a node set. Python itself refuses to read 4,300.
MAX_DIGITS = 18
# Characters of an operand in a message.
QUOTED_LENGTH = 60
# What a host name, an address, or a name of ~/.ssh/config can be, after a user and `@` too. It may
# not begin with a dash: ssh, or what a ProxyCommand starts, would take it for an option.
_NODE_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.@-]*@)?[A-Za-z0-9_][A-Za-z0-9_.:-]*")
# One operand of a node set (separators within brackets are part of it), and the numbers in one
# pair of its brackets.
OPERAND = re.compile(r"(?:[^\s,!&^\[\]]|\[[^\]]*\]?)+")
_BRACKETS = re.compile(r"\[([^\]]*)\]?")
_RANGE = re.compile(r"\s*(\d+)-(\d+)(?:/\d+)?\s*")
_FORMS = "A node set looks like `n[1-4,7]`, `n1,n2`, `@group` or `n[1-4]!n3`."
# ssh gives up on a host that is silent for this long within a command. It must outlast a node that
# is busy, or a switch that reboots.
KEEPALIVE_S, KEEPALIVES = 15, 4
SSH_OPTIONS = (
    "-oBatchMode=yes",
    # A connection that the user has open is used, and none of ours stays for others: in older
    # versions of OpenSSH a master in the background (ControlPersist) holds our pipe open, and the
    # command never seems to end (bugzilla.mindrot.org, 1988).
    "-oControlMaster=no",
    f"-oServerAliveInterval={KEEPALIVE_S}",
    f"-oServerAliveCountMax={KEEPALIVES}",
)
# How often interrupts and time limits are looked at.
CHECK_S = 0.2
# As much is read at once.
READ_BYTES = 1 << 16
# The characters of the number of a task of srun.
LABEL_LENGTH = 8
# What a command may print on a node.
MOST_BYTES = 1 << 20
# Files of a running command: three pipes, and one more while it starts.
_FILES_PER_COMMAND = 4
_FILES_OF_OURS = 64


@dataclass(frozen=True, kw_only=True)
class NodeOutput:
    """What a command did on a node.

    status: its exit code, 255 if ssh itself failed, 128 + N if signal N ended it; None if its
    output had not ended at the time limit, and may be incomplete. is_cut: it printed more than was
    read. started, ended: this machine's Unix time.
    """

    node: str
    status: int | None
    stdout: bytes
    stderr: str
    started: float
    ended: float
    is_cut: bool = False


def run(
    nodes: Sequence[str],
    command: str,
    *,
    stdin: bytes | Callable[[str], bytes] = b"",
    worker: Worker = "ssh",
    fanout: int = 64,
    connect_s: float = 10,
    timeout_s: float,
    straggler_factor: float = 0.0,
    ssh_options: Sequence[str] = (),
    most_bytes: int = MOST_BYTES,
    is_labeled: bool = False,
    on_output: Callable[[NodeOutput], None] | None = None,
) -> list[NodeOutput]:
    """Run a shell command on every node, `fanout` at a time; outputs in the order of `nodes`.

    stdin: what the command reads, or a function from a node to that. worker: "exec" runs the
    command on this machine once for each node, with `%h` replaced by the node's name (and `%%` by
    `%`). connect_s: how long ssh may take to connect. timeout_s: how long a node may take, counted
    from its own start; its ssh is then killed. straggler_factor: a node may also take this many
    times the median of those that have ended, if that is more. most_bytes: of each of a node's two
    outputs; no more is read, and a command that goes on printing gets SIGPIPE. is_labeled: the
    command is srun's, whose lines begin with `TASK:`, and most_bytes are for each task. on_output:
    called with each output as it comes.

    Raises ToolMissing if there is no ssh on this machine.
    """
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
    from ClusterShell.Task import Task

    if worker == "ssh" and shutil.which("ssh") is None:
        raise ToolMissing(
            "There is no `ssh` on this machine.", advice="Install OpenSSH's client, or set PATH."
        )
    logging.getLogger("ClusterShell").addHandler(logging.NullHandler())
    worker_class = _worker_class(worker, math.inf if is_labeled else most_bytes)
    task = Task(thread=threading.current_thread())
    interrupts = _Interrupts()
    limit_s = partial(time_limit_s, timeout_s, straggler_factor)
    label_bytes = most_bytes if is_labeled else None
    collector = _collector(on_output, limit_s, interrupts, label_bytes)
    try:
        task.set_default("stdout_msgtree", False)
        task.set_default("stderr_msgtree", False)
        task.set_info("fanout", min(fanout, _most_commands()))
        task.set_info("connect_timeout", math.ceil(connect_s))
        user_options = task.info("ssh_options") or ""
        task.set_info("ssh_options", f"{shlex.join([*ssh_options, *SSH_OPTIONS])} {user_options}")
        for node in nodes:
            # ClusterShell can end a whole worker only, so each node has one.
            node_worker = worker_class(
                NodeSet.fromlist([node], resolver=RESOLVER_NOGROUP),
                handler=collector,
                command=command,
                stderr=True,
            )
            node_worker.write(stdin if isinstance(stdin, bytes) else stdin(node))
            node_worker.set_write_eof()
            task.schedule(node_worker)
        task.timer(CHECK_S, collector, interval=CHECK_S, autoclose=True)
        with interrupts:
            task.resume()
    finally:
        task.abort(kill=True)
    return [collector.outputs[node] for node in nodes]


def time_limit_s(timeout_s: float, straggler_factor: float, durations: Sequence[float]) -> float:
    """How long a node may take, after others took these times."""
    if not straggler_factor or not durations:
        return timeout_s
    return max(timeout_s, straggler_factor * statistics.median(durations))


def ssh_command(
    address: str, command: str, *, connect_s: float = 10, ssh_options: Sequence[str] = ()
) -> list[str]:
    """The arguments of ssh that run a command on one node as `run` does, for callers that stream
    into it."""
    timeout = f"-oConnectTimeout={math.ceil(connect_s)}"
    forwarding = ("-oForwardAgent=no", "-oForwardX11=no")
    return ["ssh", *ssh_options, *SSH_OPTIONS, *forwarding, timeout, address, command]


def expand(text: str) -> list[str]:
    """The nodes of a node set, in its order. Raises InvalidSpec."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError

    _refuse_huge_sets(text)
    try:
        names = list(NodeSet(text))
    except NodeSetException as error:
        raise InvalidSpec(f"`{text}` is not a node set: {error}.", advice=_FORMS) from error
    except (GroupResolverError, GroupSourceError) as error:
        advice = "`nodeset -L` lists the groups of your ClusterShell configuration."
        raise InvalidSpec(f"`{text}`: {error}.", advice=advice) from error
    for name in names:
        is_address = name.count(":") != 1  # of IPv6; with one colon it is a misspelled prefix
        if not (_NODE_NAME.fullmatch(name) and is_address):
            raise InvalidSpec(f"`{name}` in `{text}` cannot be a host name.", advice=_FORMS)
    return names


def fold(nodes: Collection[str]) -> str:
    """Names as a node set: `n[0001-0998]`."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(list(nodes), resolver=RESOLVER_NOGROUP))


def count(nodes: str) -> int:
    """How many nodes a folded node set has."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return len(NodeSet(nodes, resolver=RESOLVER_NOGROUP))


def _refuse_huge_sets(text: str) -> None:
    """Raise InvalidSpec if the operands of a node set name too many nodes together."""
    total = 0
    for operand in OPERAND.findall(text):
        count = 1
        for numbers in _BRACKETS.findall(operand):
            count *= sum(_range_length(part) for part in numbers.split(","))
        total += count
        if total > MAX_NODES:
            quoted = operand if len(operand) <= QUOTED_LENGTH else f"{operand[:QUOTED_LENGTH]}..."
            raise InvalidSpec(
                f"A node set with `{quoted}` has more than {MAX_NODES:,} nodes.", advice=_FORMS
            )


def _range_length(text: str) -> int:
    match = _RANGE.fullmatch(text)
    if match is None:
        return 1
    if max(len(match[1]), len(match[2])) > MAX_DIGITS:
        return MAX_NODES + 1
    return max(1, int(match[2]) - int(match[1]) + 1)


def _worker_class(worker: Worker, most_bytes: float) -> Any:
    """A class of ClusterShell's workers, of which one command starts at a time: ClusterShell forks,
    and several threads may run commands. It reads no more than most_bytes of each output."""
    from ClusterShell.Engine.Engine import E_READ, E_WRITE
    from ClusterShell.Worker.EngineClient import EngineClientEOF
    from ClusterShell.Worker.Exec import ExecClient, ExecWorker
    from ClusterShell.Worker.Ssh import SshClient, WorkerSsh

    is_ssh = worker == "ssh"
    client_class = SshClient if is_ssh else ExecClient

    class Client(client_class):  # type: ignore[misc, valid-type]
        def _start(self) -> Any:
            self._counts: dict[str, int] = {}
            return super()._start()

        def _exec_nonblock(self, commandlist: Any, shell: bool = False, env: Any = None) -> Any:
            # ClusterShell forks, which took 2 of 5 ms for each node.
            child = process.start_piped(commandlist, shell=shell)
            names = (self.worker.SNAME_STDERR, self.worker.SNAME_STDOUT, self.worker.SNAME_STDIN)
            for name, file in zip(names, (child.stderr, child.stdout, child.stdin)):
                assert file is not None
                descriptor = os.dup(file.fileno())
                file.close()
                os.set_blocking(descriptor, False)
                is_input = name == self.worker.SNAME_STDIN
                mode = E_WRITE if is_input else E_READ
                self.streams.set_stream(name, descriptor, mode, retain=not is_input)
            return child

        def _read(self, sname: str, size: int = READ_BYTES) -> Any:
            count = self._counts.get(sname, 0)
            if count > most_bytes:
                self.worker.eh.cut.add(self.key)
                raise EngineClientEOF()
            data = super()._read(sname, size)
            self._counts[sname] = count + len(data)
            return data

        def _handle_read(self, sname: str) -> None:
            # ClusterShell makes an event of each line, which takes a minute for a megabyte of short
            # ones.
            self.worker.eh.add(self.key, sname, self._read(sname))

    class OneAtATime(WorkerSsh if is_ssh else ExecWorker):  # type: ignore[misc]
        SHELL_CLASS = Client

    return OneAtATime


def _most_commands() -> int:
    """How many commands may run at once before this process has too many open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_NODES
    return max(1, (soft - _FILES_OF_OURS) // _FILES_PER_COMMAND)


def _collector(
    on_output: Callable[[NodeOutput], None] | None,
    limit_s: Callable[[Sequence[float]], float],
    interrupts: _Interrupts,
    label_bytes: int | None,
) -> Any:
    """A ClusterShell event handler that makes NodeOutputs, and its timer's. limit_s: how long a
    node may take, after others took these times. label_bytes: how much to store of the
    lines that begin with the same word."""
    from ClusterShell.Event import EventHandler

    class Collector(EventHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.outputs: dict[str, NodeOutput] = {}
            self._workers: dict[str, Any] = {}
            self._started: dict[str, float] = {}
            self._pieces: dict[tuple[str, str], list[bytes]] = {}
            self._label_counts: dict[tuple[str, str, bytes], int] = {}
            self._durations: list[float] = []
            # The nodes that printed more than was read.
            self.cut: set[str] = set()

        def ev_pickup(self, worker: Any, node: str) -> None:
            self._started[node] = time.time()
            self._workers[node] = worker

        def add(self, node: str, sname: str, data: bytes) -> None:
            pieces = self._pieces.setdefault((node, sname), [])
            if label_bytes is None:
                pieces.append(data)
                return
            # The last piece is a line that has not ended.
            *lines, rest = ((pieces.pop() if pieces else b"") + data).split(b"\n")
            for line in lines:
                label = (node, sname, line.partition(b":")[0].strip()[:LABEL_LENGTH])
                self._label_counts[label] = self._label_counts.get(label, 0) + len(line)
                if self._label_counts[label] <= label_bytes:
                    pieces.append(line + b"\n")
            pieces.append(rest[:label_bytes])

        def ev_hup(self, worker: Any, node: str, rc: int) -> None:
            self._end(node, rc)

        def ev_timer(self, timer: Any) -> None:
            interrupts.deliver()
            latest_start = time.time() - limit_s(self._durations)
            for node, worker in list(self._workers.items()):
                if self._started[node] < latest_start:
                    # What was not read yet is dropped, so its status would not help.
                    self._end(node, None)
                    worker.abort()

        def _end(self, node: str, status: int | None) -> None:
            if self._workers.pop(node, None) is None:
                return  # it was overdue
            output = NodeOutput(
                node=node,
                status=status,
                stdout=self._printed(node, "stdout"),
                stderr=self._printed(node, "stderr").decode(errors="replace"),
                started=self._started[node],
                ended=time.time(),
                is_cut=node in self.cut,
            )
            self.outputs[node] = output
            if status is not None:
                self._durations.append(output.ended - output.started)
            if on_output is not None:
                on_output(output)

        def _printed(self, node: str, sname: str) -> bytes:
            text = b"".join(self._pieces.pop((node, sname), []))
            return text.replace(b"\r\n", b"\n").removesuffix(b"\n")

    return Collector()


class _Interrupts:
    """Signals that interrupt (Ctrl-C, SIGTERM), delivered where ClusterShell can clean up.

    Python delivers a signal after the next instruction. During a fork that may be in a callback
    whose exceptions are ignored, and the interrupt would be lost; just after it, before ClusterShell
    knows the child, which would then be left running. Both were seen.
    """

    def __init__(self) -> None:
        self._received: list[tuple[int, Any]] = []
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals go to the main thread only
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, lambda *received: self._received.append(received))

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.deliver()

    def deliver(self) -> None:
        """Do what the signal would have done; for Ctrl-C that is KeyboardInterrupt."""
        if self._received:
            number, frame = self._received.pop()
            self._handlers[number](number, frame)
