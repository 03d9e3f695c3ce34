"""Node sets, the user's node groups, and one command on many nodes: the only module that calls
ClusterShell.

ssh is the user's own: configuration, jump hosts, agents, Kerberos. It never asks: neither for a
password nor about a host key.
"""

from __future__ import annotations

import math
import os
import re
import resource
import selectors
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from provision.core import process
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, ToolMissing

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
# What a command may print on a node.
MOST_BYTES = 1 << 20
# Files of a running command: three pipes, and one more while it starts.
_FILES_PER_COMMAND = 4
_FILES_OF_OURS = 64


@frozen
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
    commands: Mapping[str, Sequence[str]],
    *,
    stdin: Callable[[str], Iterable[bytes]] = lambda _: (),
    fanout: int = 64,
    timeout_s: float,
    straggler_factor: float = 0.0,
    most_bytes: int = MOST_BYTES,
    on_output: Callable[[NodeOutput], None] | None = None,
) -> list[NodeOutput]:
    """Run a command for every node, `fanout` at a time; outputs in the order of the nodes.

    commands: the arguments of each node's. stdin: from a node to the pieces of what its command
    reads. timeout_s: how long a node may take, counted from its own start; its command is then killed.
    straggler_factor: a node may also take this many times the median of those that have ended, if that
    is more. most_bytes: of each of a node's two outputs; no more is read, and a command that goes on
    printing gets SIGPIPE. on_output: called with each output as it comes.

    Raises ToolMissing if there is no such program on this machine.
    """
    waiting = [*commands][::-1]
    running: set[_Command] = set()
    outputs: dict[str, NodeOutput] = {}
    durations: list[float] = []
    next_check = 0.0
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < min(fanout, _most_commands()):
                    node = waiting.pop()
                    with process.hold_signals():  # else Ctrl-C could leave it running
                        pieces = iter(stdin(node))
                        running.add(_Command(node, commands[node], pieces, selector, most_bytes))
                events = selector.select(CHECK_S)
                ended = {key.data for key, _ in events if key.data.exchange(key.fileobj)}
                now = time.time()
                if now >= next_check:
                    next_check = now + CHECK_S
                    limit_s = time_limit_s(timeout_s, straggler_factor, durations)
                    ended |= {child for child in running if child.started < now - limit_s}
                for child in ended:
                    running.discard(child)
                    output = outputs[child.node] = child.end()
                    if output.status is not None:
                        durations.append(output.ended - output.started)
                    if on_output is not None:
                        on_output(output)
        finally:
            for child in running:
                child.end()
    return [outputs[node] for node in commands]


class _Command:
    """A command that runs for one node, and what it has printed."""

    def __init__(
        self,
        node: str,
        argv: Sequence[str],
        stdin: Iterator[bytes],
        selector: selectors.BaseSelector,
        most_bytes: int,
    ) -> None:
        self.node, self.started = node, time.time()
        self._selector, self._most_bytes = selector, most_bytes
        self._stdin, self._unwritten = stdin, memoryview(b"")
        try:
            self._child = child = process.start_piped(argv)
        except OSError as error:
            raise ToolMissing(
                f"`{argv[0]}` cannot be started: {error.strerror}.",
                advice="Install it, or set PATH.",
            ) from error
        # By pipe: what it printed.
        self._printed: dict[Any, bytearray] = {child.stdout: bytearray(), child.stderr: bytearray()}
        self._is_cut = False
        for file in (child.stdin, *self._printed):
            os.set_blocking(file.fileno(), False)
            events = selectors.EVENT_READ if file in self._printed else selectors.EVENT_WRITE
            selector.register(file, events, self)

    def exchange(self, file: Any) -> bool:
        """Write to a pipe, or read from it, what it takes or has now; whether no output is left."""
        if file not in self._printed:
            try:
                self._unwritten = self._unwritten or memoryview(next(self._stdin))
                self._unwritten = self._unwritten[os.write(file.fileno(), self._unwritten) :]
            except (StopIteration, BrokenPipeError):  # all is written, or it reads no more
                self._close(file)
            return False
        data = os.read(file.fileno(), READ_BYTES)
        self._printed[file] += data
        self._is_cut |= len(self._printed[file]) > self._most_bytes
        if not data or self._is_cut:
            self._close(file)
        return all(output.closed for output in self._printed)

    def _close(self, file: Any) -> None:
        self._selector.unregister(file)
        file.close()

    def end(self) -> NodeOutput:
        """What it did. If it has not closed its outputs, it is killed: what it printed since would
        be lost, so its status would not help."""
        is_late = not all(file.closed for file in self._printed)
        if is_late:
            self._child.kill()
        status = self._child.wait()
        if status < 0:  # by a signal: the number that shells have for it
            status = 128 - status
        for file in (self._child.stdin, *self._printed):
            if file and not file.closed:
                self._close(file)
        stdout, stderr = (
            bytes(printed).replace(b"\r\n", b"\n").removesuffix(b"\n")
            for printed in self._printed.values()
        )
        return NodeOutput(
            node=self.node,
            status=None if is_late else status,
            stdout=stdout,
            stderr=stderr.decode(errors="replace"),
            started=self.started,
            ended=time.time(),
            is_cut=self._is_cut,
        )


def time_limit_s(timeout_s: float, straggler_factor: float, durations: Sequence[float]) -> float:
    """How long a node may take, after others took these times."""
    if not straggler_factor or not durations:
        return timeout_s
    return max(timeout_s, straggler_factor * statistics.median(durations))


def ssh_command(
    address: str, command: str, *, connect_s: float = 10, ssh_options: Sequence[str] = ()
) -> list[str]:
    """The arguments of ssh that run a command on one node."""
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
        brackets = _BRACKETS.findall(operand)
        total += math.prod(sum(map(_range_length, part.split(","))) for part in brackets)
        if total > MAX_NODES:
            raise InvalidSpec(
                f"A node set with `{operand[:QUOTED_LENGTH]}` has more than {MAX_NODES:,} nodes.",
                advice=_FORMS,
            )


def _range_length(text: str) -> int:
    match = _RANGE.fullmatch(text)
    if match is None:
        return 1
    if max(map(len, match.groups())) > MAX_DIGITS:
        return MAX_NODES + 1
    return max(1, int(match[2]) - int(match[1]) + 1)


def _most_commands() -> int:
    """How many commands may run at once before this process has too many open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_NODES
    return max(1, (soft - _FILES_OF_OURS) // _FILES_PER_COMMAND)
