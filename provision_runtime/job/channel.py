"""Exchanges between the nodes of a job before and while its ranks run.

Node 0 listens, the others connect to it (connection.py). It needs no torch, so a node whose torch is
broken, or which is late, is named instead of being waited for by a rendezvous that knows numbers
only. Node 0 drops whoever has not shown the job's key within moments, and counts them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Tuple

from ..comm.addresses import is_loopback
from ..report.text import format_count
from .comparison import name_nodes
from .connection import (
    CONNECT_S,
    GREETING_S,
    HEAD,
    Connection,
    Message,
    greet,
    listen,
    plain_address,
)
from .errors import JobError, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decision = Callable[[Sequence[Any]], Any]
    Event = Tuple[Connection, Optional[Message]]

RETRY_S = 0.5
# Node 0 may start a little later. A loopback address that does not respond by then is not node 0.
LOOPBACK_S = 15.0
REMIND_S = 10.0
# How many connections, besides the nodes', may wait to be greeted. Then the oldest is dropped; a node
# connects again.
MOST_STRANGERS = 128


class Channel:
    """What node 0 and the others have in common. A job of one node has nobody to talk to.

    connections: to the other nodes, as long as they are open. selector: also calls what others
    register there, with a function as its data.
    """

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.connections: list[Connection] = []
        self._events: deque[Event] = deque()

    def exchange(self, topic: str, payload: Any, decide: Decision, wait_s: float) -> Any:
        """Node 0 gets every node's payload, in their order, and decides; all get its decision.

        Raises JobError, which names the nodes that are missing after wait_s.
        """
        return decide([payload])

    @property
    def address(self) -> str:
        """Node 0's address, as the other nodes reach it."""
        return "127.0.0.1"

    @property
    def local_address(self) -> str | None:
        """This node's address in the network of the others; None if there are none."""
        return None

    def next_event(self, timeout_s: float | None) -> Event | None:
        """A connection with a message that came, or with None at its end; None if nothing came."""
        if not self._events:
            for key, _ in self.selector.select(timeout_s):
                key.data()
        return self._events.popleft() if self._events else None

    def _next_payload(self, timeout_s: float) -> Event | None:
        """The same within an exchange. Raises what the other side announced."""
        event = self.next_event(max(0.0, timeout_s))
        message = event[1] if event else None
        if message and message.end is not None:
            raise JobError(message.end, is_remote=True)
        if message and message.stop is not None:
            raise Stopped(message.stop)
        return event

    def _add(self, connection: Connection) -> None:
        self.connections.append(connection)
        receive = partial(self._receive, connection)
        self.selector.register(connection.socket, selectors.EVENT_READ, receive)

    def _receive(self, connection: Connection) -> None:
        messages = connection.receive()
        if messages is None:
            self.selector.unregister(connection.socket)
            self.connections.remove(connection)
            self._events.append((connection, None))
            return
        self._events += [(connection, message) for message in messages]

    def send_to_all(self, message: Message) -> None:
        """Send a message to the other nodes that this one is connected to: those that are gone need
        none."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.send(message)

    def announce_end(self, reason: str) -> None:
        """End the job on the other nodes too."""
        self.send_to_all(Message(end=reason))

    def announce_stop(self, number: int) -> None:
        """Stop the job on the other nodes too, as a signal stopped it here."""
        self.send_to_all(Message(stop=number))

    def close(self) -> None:
        self.selector.close()
        for connection in self.connections:
            connection.close()


class Head(Channel):
    """Node 0. names: of all nodes, in their order."""

    def __init__(self, job: str, names: Sequence[str], ports: Sequence[int], key: bytes) -> None:
        super().__init__()
        self._job, self._names, self._key = job, list(names), key
        # Oldest first; and from where those came that were dropped.
        self._strangers: list[Connection] = []
        self._dropped: Counter[str] = Counter()
        self._listener = listen(ports)
        self.selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def address(self) -> str:
        used = [plain_address(member.socket.getsockname()[0]) for member in self.connections]
        return Counter(used).most_common(1)[0][0]

    @property
    def local_address(self) -> str | None:
        return self.address

    def exchange(self, topic: str, payload: Any, decide: Decision, wait_s: float) -> Any:
        payloads = {0: payload}
        end, remind = time.monotonic() + wait_s, time.monotonic() + REMIND_S
        while len(payloads) < len(self._names):
            missing = [name for number, name in enumerate(self._names) if number not in payloads]
            now = time.monotonic()
            if now >= end:
                self._fail(f"no answer from {name_nodes(missing)} within {wait_s:.0f} s ({topic})")
            if now >= remind:
                log(f"waiting for {name_nodes(missing)} ({topic})")
                remind = now + REMIND_S
            event = self._next_payload(min(end, remind) - now)
            if event:
                member, message = event
                if message is None:
                    self._fail(f"{member.name} is gone")
                payloads[member.number] = message.payload
        self._stop_listening()
        try:
            decision = decide([payloads[number] for number in range(len(self._names))])
        except JobError as error:
            self.announce_end(str(error))
            raise
        for member in self.connections:
            try:
                member.send(Message(topic=topic, decision=decision))
            except OSError:
                self._fail(f"{member.name} is gone ({topic})")
        return decision

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
            stranger = Connection(sock, self._key, HEAD)
            stranger.open()
        except OSError:  # it is gone already
            return
        stranger.address = plain_address(address[0])
        if len(self._strangers) >= MOST_STRANGERS + len(self._names):
            self._drop(self._strangers[0])
        self._strangers.append(stranger)
        self.selector.register(sock, selectors.EVENT_READ, partial(self._greet, stranger))

    def _drop(self, stranger: Connection) -> None:
        self._dropped[stranger.address] += 1
        self.selector.unregister(stranger.socket)
        self._strangers.remove(stranger)
        stranger.close()

    def _stop_listening(self) -> None:
        """Once every node has joined, nothing else may connect."""
        if self._listener.fileno() < 0:
            return
        for stranger in list(self._strangers):
            self._drop(stranger)
        self.selector.unregister(self._listener)
        self._listener.close()
        if self._dropped:
            count = format_count(sum(self._dropped.values()), "connection")
            origins = name_nodes([address for address, _ in self._dropped.most_common()])
            log(f"{count} without the job's key dropped, from {origins}")

    def _greet(self, stranger: Connection) -> None:
        """Make a stranger with the key a member. What else is wrong with it ends the job."""
        if stranger not in self._strangers:  # it was dropped just now
            return
        messages = stranger.receive()
        if messages == []:
            return
        greeting = messages[0] if messages else Message()
        number, name = greeting.node, greeting.name
        if greeting.job != self._job or number is None or name is None:
            self._drop(stranger)
            return
        problem = ""
        if greeting.nodes != len(self._names) or not 0 < number < len(self._names):
            problem = (
                f"{name} says that it is node {number} of {greeting.nodes}, "
                f"but the job has {len(self._names)} nodes"
            )
        elif any(member.number == number for member in self.connections):
            problem = f"{self._names[number]} and {name} both say that they are node {number}"
        self._strangers.remove(stranger)
        self.selector.unregister(stranger.socket)
        if not problem:
            self._names[number] = stranger.name = name
            stranger.number = number
            self._add(stranger)
        with contextlib.suppress(OSError):  # its end is noticed when it is read
            stranger.send(Message(end=problem) if problem else Message(job=self._job))
        if problem:
            stranger.close()
            self._fail(problem)

    def _fail(self, message: str) -> NoReturn:
        self.announce_end(message)
        raise JobError(message)

    def close(self) -> None:
        self._stop_listening()
        super().close()


class Member(Channel):
    """A node other than node 0. Connects in the constructor; raises JobError after wait_s.

    heads: names and addresses at which node 0 may be.
    """

    def __init__(
        self,
        job: str,
        number: int,
        nodes: int,
        name: str,
        heads: Sequence[str],
        ports: Sequence[int],
        wait_s: float,
        key: bytes,
    ) -> None:
        super().__init__()
        self._head = heads[0]
        greeting = Message(job=job, node=number, nodes=nodes, name=name)
        self._connection = _connect(greeting, heads, ports, wait_s, key)
        self._add(self._connection)

    @property
    def address(self) -> str:
        return plain_address(self._connection.socket.getpeername()[0])

    @property
    def local_address(self) -> str | None:
        return plain_address(self._connection.socket.getsockname()[0])

    def exchange(self, topic: str, payload: Any, decide: Decision, wait_s: float) -> Any:
        self.send_to_all(Message(topic=topic, payload=payload))
        # Node 0 decides at its own deadline, which began later than ours.
        end = time.monotonic() + wait_s + CONNECT_S + GREETING_S
        while time.monotonic() < end:
            event = self._next_payload(end - time.monotonic())
            if event and event[1] is None:
                raise JobError(f"node 0 ({self._head}) is gone ({topic})")
            if event and event[1]:
                return event[1].decision
        raise JobError(f"node 0 ({self._head}) did not answer within {wait_s:.0f} s ({topic})")


def log(*lines: str) -> None:
    """Lines of the job's log, in one piece: other processes write there too."""
    sys.stderr.write("".join(f"provision: {line}\n" for line in lines))
    sys.stderr.flush()


def _connect(
    greeting: Message, heads: Sequence[str], ports: Sequence[int], wait_s: float, key: bytes
) -> Connection:
    started = time.monotonic()
    remind = started + REMIND_S
    while True:
        addresses: list[str] = []
        problems: list[str] = []
        for head in heads:
            try:
                entries = socket.getaddrinfo(head, None, type=socket.SOCK_STREAM)
                resolved = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
                addresses += resolved
                problems.append(
                    f"{head} ({', '.join(resolved)}) does not answer with the job's key"
                )
            except socket.gaierror as error:
                # Names of a cluster's pods appear seconds after the pods.
                problems.append(f"the name {head} does not resolve here: {error.strerror}")
        for address in dict.fromkeys(addresses):
            for port in ports:
                connection = greet(greeting, address, port, key)
                if connection is not None:
                    return connection
        waited = time.monotonic() - started
        if waited >= LOOPBACK_S and addresses and all(map(is_loopback, addresses)):
            raise JobError(
                f"{greeting.name} resolves node 0's name, {heads[0]}, to its own loopback "
                f"address {addresses[0]}: look into its /etc/hosts"
            )
        problem = f"{greeting.name}: {', '.join(problems)}"
        if waited >= wait_s:
            raise JobError(f"{problem} within {wait_s:.0f} s")
        if time.monotonic() >= remind:
            log(f"{problem} yet")
            remind = time.monotonic() + REMIND_S
        time.sleep(RETRY_S)
