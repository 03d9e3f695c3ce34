"""Exchanges between the nodes of a job before and while its ranks run: lines of JSON over TCP.

Node 0 listens, the others connect to it. It needs no torch, so a node whose torch is broken, or
which is late, is named instead of being waited for by a rendezvous that knows numbers only.

The nodes know each other by the job's key. Both sides of a connection choose a nonce; every message
carries an HMAC by the key, the nonces, its sender and its number, so nobody else can say, repeat or
change one. Node 0 drops whoever has not shown the key within moments, and counts them. Messages are
not encrypted: they hold facts of nodes, and no secret.

The port follows from key and job, so that only the nodes know it; where it is taken, the next one is
used.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..comm.addresses import is_loopback
from ..report.text import format_count
from .comparison import name_nodes
from .errors import JobError, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Decision = Callable[[Sequence[Any]], Any]

# Below the ports that Linux gives to outgoing connections (32768), above those of most services.
FIRST_PORT, PORTS = 20000, 10000
CANDIDATES = 16
CONNECT_S = 3.0
# How long node 0 may take to greet: anything else that listens there says something else, or
# nothing.
GREETING_S = 5.0
RETRY_S = 0.5
# Node 0 may start a little later; a loopback address that still does not answer then is not it.
LOOPBACK_S = 15.0
REMIND_S = 10.0
# No message of ours is longer, and no greeting is.
LONGEST_LINE, LONGEST_GREETING = 1 << 20, 4096
# More connections than nodes and these do not wait for their greeting at once: the oldest is
# dropped, and if it is a node's, it comes again.
MOST_STRANGERS = 128
HEAD, MEMBER = b"head", b"member"
NONCE_BYTES = 16
MAC_DIGITS = 64
# What messages have.
FIELDS: dict[str, Any] = {
    **dict.fromkeys(("job", "name", "topic", "end"), str),
    **dict.fromkeys(("node", "nodes", "stop"), int),
    **dict.fromkeys(("payload", "decision", "done"), object),
}


def candidate_ports(key: bytes, job: str, port: int | None = None) -> list[int]:
    """The ports where node 0 may listen, in the order in which it tries them.

    port: this one only.
    """
    if port is not None:
        return [port]
    first = int.from_bytes(hmac.digest(key, b"port " + job.encode(), "sha256")[:8], "big")
    return [FIRST_PORT + (first + number) % PORTS for number in range(CANDIDATES)]


class Connection:
    """One connection: messages out, and `inbox`, the messages that have arrived and are of the other
    side of this connection. side: HEAD or MEMBER, which this one is."""

    def __init__(self, sock: socket.socket, key: bytes, side: bytes) -> None:
        self.socket = sock
        self.inbox: list[dict[str, Any]] = []
        self.opened = time.monotonic()
        self.address = ""
        # Whether the other side has shown that it has the key.
        self.is_known = False
        self._key, self._side = key, side
        self._nonce = secrets.token_hex(NONCE_BYTES).encode()
        self._peer_nonce = b""
        self._sent = self._taken = 0
        self._received = b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A firewall may forget a silent connection; and a machine that lost its power is noticed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)

    def open(self) -> None:
        """Send this side's nonce. Raises OSError."""
        self.socket.settimeout(GREETING_S)
        self.socket.sendall(self._nonce + b"\n")

    @property
    def has_peer(self) -> bool:
        """Whether the other side speaks as a node does."""
        return bool(self._peer_nonce)

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError if the other side is gone."""
        text = json.dumps(message).encode()
        mac = self._mac(self._side, self._sent, text)
        self._sent += 1
        self.socket.settimeout(GREETING_S)
        self.socket.sendall(mac + b" " + text + b"\n")

    def receive(self) -> bool:
        """Add what has arrived to the inbox; False at the end of the connection.

        Blocks if there is nothing to read, up to the socket's time-out: raises socket.timeout then. A
        line that is no message of the other side ends the connection.
        """
        try:
            data = self.socket.recv(65536)
        except OSError as error:
            if error.errno is None:  # our own time-out; the kernel's has a number
                raise
            return False
        lines = (self._received + data).split(b"\n")
        self._received = lines.pop()
        for line in lines:
            if not self._take(line):
                return False
        longest = LONGEST_LINE if self.is_known else LONGEST_GREETING
        return bool(data) and len(self._received) <= longest

    def receive_before_deadline(self) -> bool:
        """The same within the time for a greeting, however slowly bytes come."""
        remaining = self.opened + GREETING_S - time.monotonic()
        self.socket.settimeout(max(0.001, remaining))
        return remaining > 0 and self.receive()

    def _take(self, line: bytes) -> bool:
        """Whether a line is what comes next; a message goes into the inbox."""
        if not self._peer_nonce:
            if len(line) != 2 * NONCE_BYTES or not line.isalnum():
                return False
            self._peer_nonce = line
            return True
        other = MEMBER if self._side == HEAD else HEAD
        mac, text = line[:MAC_DIGITS], line[MAC_DIGITS + 1 :]
        if not hmac.compare_digest(mac, self._mac(other, self._taken, text)):
            return False
        self._taken += 1
        self.is_known = True
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return False
        if not isinstance(message, dict):
            return False
        for name, value in message.items():
            if not isinstance(value, FIELDS.get(name, ())):
                return False
        self.inbox.append(message)
        return True

    def _mac(self, side: bytes, number: int, text: bytes) -> bytes:
        first, second = sorted((self._nonce, self._peer_nonce))
        head = b"%s %s %s %d " % (first, second, side, number)
        return hmac.digest(self._key, head + text, "sha256").hex().encode()

    def close(self) -> None:
        self.socket.close()


class Channel:
    """What node 0 and the others have in common. A job of one node has nobody to talk to."""

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

    def connections(self) -> list[Connection]:
        return []

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to the other nodes that this one is connected to: those that are gone need
        none."""
        for connection in self.connections():
            try:
                connection.send(message)
            except OSError:
                continue

    def announce_end(self, reason: str) -> None:
        """End the job on the other nodes too."""
        self.tell({"end": reason})

    def announce_stop(self, number: int) -> None:
        """Stop the job on the other nodes too, as a signal stopped it here."""
        self.tell({"stop": number})

    def close(self) -> None:
        """Close all connections."""


class Head(Channel):
    """Node 0. names: of all nodes, in their order."""

    def __init__(self, job: str, names: Sequence[str], ports: Sequence[int], key: bytes) -> None:
        self._job, self._names, self._key = job, list(names), key
        self._members: dict[int, Connection] = {}
        # Oldest first; and from where those came that were dropped.
        self._strangers: list[Connection] = []
        self._dropped: Counter[str] = Counter()
        self._listener = _listen(ports)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def address(self) -> str:
        used = Counter(_plain(each.socket.getsockname()[0]) for each in self._members.values())
        return used.most_common(1)[0][0]

    @property
    def local_address(self) -> str | None:
        return self.address

    def connections(self) -> list[Connection]:
        return list(self._members.values())

    def exchange(self, topic: str, payload: Any, decide: Decision, wait_s: float) -> Any:
        payloads = {0: payload}
        end, remind = time.monotonic() + wait_s, time.monotonic() + REMIND_S
        while True:
            for number, member in self._members.items():
                for message in _taken(member):
                    payloads[number] = message.get("payload")
            missing = [name for number, name in enumerate(self._names) if number not in payloads]
            if not missing:
                break
            now = time.monotonic()
            if now >= end:
                self._fail(f"no answer from {name_nodes(missing)} within {wait_s:.0f} s ({topic})")
            if now >= remind:
                say(f"waiting for {name_nodes(missing)} ({topic})")
                remind = now + REMIND_S
            self._receive(min(end, remind) - now)
        self._stop_listening()
        try:
            decision = decide([payloads[number] for number in range(len(self._names))])
        except JobError as error:
            self.announce_end(str(error))
            raise
        for number, member in self._members.items():
            try:
                member.send({"topic": topic, "decision": decision})
            except OSError:
                self._fail(f"{self._names[number]} is gone ({topic})")
        return decision

    def _receive(self, timeout_s: float) -> None:
        if self._strangers:
            timeout_s = min(timeout_s, GREETING_S)
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data.socket.fileno() >= 0:  # else it was dropped just now
                self._read(key.data)
        latest = time.monotonic() - GREETING_S
        for stranger in [each for each in self._strangers if each.opened <= latest]:
            self._drop(stranger)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:  # it is gone already
            return
        connection = Connection(sock, self._key, HEAD)
        connection.address = _plain(address[0])
        if len(self._strangers) >= MOST_STRANGERS + len(self._names):
            self._drop(self._strangers[0])
        self._strangers.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        try:
            connection.open()
        except OSError:
            self._drop(connection)

    def _read(self, connection: Connection) -> None:
        try:
            is_open = connection.receive()
        except socket.timeout:  # what the kernel reported was nothing
            return
        if connection not in self._strangers:
            if not is_open:
                self._selector.unregister(connection.socket)
                for number, member in self._members.items():
                    if member is connection and not connection.inbox:
                        self._fail(f"{self._names[number]} is gone")
        elif connection.inbox:
            self._greet(connection, connection.inbox.pop(0))
        elif not is_open:
            self._drop(connection)

    def _drop(self, stranger: Connection) -> None:
        self._dropped[stranger.address] += 1
        self._selector.unregister(stranger.socket)
        self._strangers.remove(stranger)
        stranger.close()

    def _stop_listening(self) -> None:
        """When every node is there, nobody else has anything to say."""
        if self._listener.fileno() < 0:
            return
        for stranger in list(self._strangers):
            self._drop(stranger)
        self._selector.unregister(self._listener)
        self._listener.close()
        if self._dropped:
            count = format_count(sum(self._dropped.values()), "connection")
            places = name_nodes([address for address, _ in self._dropped.most_common()])
            say(f"{count} without the job's key dropped, from {places}")

    def _greet(self, connection: Connection, message: dict[str, Any]) -> None:
        """Make a stranger a member. It has the key, so what is wrong with it ends the job."""
        number = message.get("node")
        if message.get("job") != self._job or number is None:
            self._drop(connection)
            return
        name = str(message.get("name"))
        problem = ""
        if message.get("nodes") != len(self._names) or not 0 < number < len(self._names):
            problem = (
                f"{name} says that it is node {number} of {message.get('nodes')}, "
                f"but the job has {len(self._names)} nodes"
            )
        elif number in self._members:
            problem = f"{self._names[number]} and {name} both say that they are node {number}"
        self._strangers.remove(connection)
        if not problem:
            self._names[number] = name
            self._members[number] = connection
        with contextlib.suppress(OSError):  # its end is noticed when it is read
            connection.send({"end": problem} if problem else {"job": self._job})
        if problem:
            connection.close()
            self._fail(problem)

    def _fail(self, message: str) -> None:
        self.announce_end(message)
        raise JobError(message)

    def close(self) -> None:
        self._stop_listening()
        self._selector.close()
        for connection in self._members.values():
            connection.close()


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
        self._head = heads[0]
        greeting = {"job": job, "node": number, "nodes": nodes, "name": name}
        self._connection = _connect(greeting, heads, ports, wait_s, key)

    @property
    def address(self) -> str:
        return _plain(self._connection.socket.getpeername()[0])

    @property
    def local_address(self) -> str | None:
        return _plain(self._connection.socket.getsockname()[0])

    def connections(self) -> list[Connection]:
        return [self._connection]

    def exchange(self, topic: str, payload: Any, decide: Decision, wait_s: float) -> Any:
        gone = JobError(f"node 0 ({self._head}) is gone ({topic})")
        try:
            self._connection.send({"topic": topic, "payload": payload})
        except OSError as error:
            raise gone from error
        # Node 0 decides at its own deadline, which began later than ours.
        self._connection.socket.settimeout(wait_s + CONNECT_S + GREETING_S)
        while True:
            for message in _taken(self._connection):
                return message.get("decision")
            try:
                is_open = self._connection.receive()
            except socket.timeout as error:
                raise JobError(
                    f"node 0 ({self._head}) did not answer within {wait_s:.0f} s ({topic})"
                ) from error
            if not is_open and not self._connection.inbox:
                raise gone

    def close(self) -> None:
        self._connection.close()


def say(text: str) -> None:
    """A line of the job's log."""
    sys.stderr.write(f"provision: {text}\n")
    sys.stderr.flush()


def _taken(connection: Connection) -> Iterator[dict[str, Any]]:
    """The messages of an exchange, taken out of the inbox. Raises what the other side announced."""
    while connection.inbox:
        message = connection.inbox.pop(0)
        if "end" in message:
            raise JobError(str(message["end"]), is_of_others=True)
        if "stop" in message:
            raise Stopped(message["stop"])
        yield message


def _listen(ports: Sequence[int]) -> socket.socket:
    """A listener on the first free port, for IPv6 and IPv4 where the machine has both."""
    problem = ""
    for port in ports:
        for family in (socket.AF_INET6, socket.AF_INET):
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # no IPv6
                problem = str(error)
                continue
            try:
                # A job that was requeued at once: its old connections may still be closing.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind(("", port))
                listener.listen(1024)
                return listener
            except OSError as error:
                listener.close()
                problem = error.strerror or str(error)
    tried = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"
    raise JobError(f"node 0 cannot listen on {tried}: {problem}")


def _connect(
    greeting: dict[str, Any], heads: Sequence[str], ports: Sequence[int], wait_s: float, key: bytes
) -> Connection:
    started = time.monotonic()
    remind = started + REMIND_S
    while True:
        addresses: list[str] = []
        problems: list[str] = []
        for head in heads:
            try:
                own = _resolve(head)
                addresses += own
                problems.append(f"{head} ({', '.join(own)}) does not answer")
            except socket.gaierror as error:
                # Names of a cluster's pods appear seconds after the pods.
                problems.append(f"the name {head} does not resolve here: {error.strerror}")
        for address in dict.fromkeys(addresses):
            for port in ports:
                try:
                    connection = _greeted(greeting, address, port, key)
                except _WrongKey:
                    problems.append(f"what listens at port {port} there has another key")
                    continue
                if connection is not None:
                    return connection
        waited = time.monotonic() - started
        if waited >= LOOPBACK_S and addresses and all(map(is_loopback, addresses)):
            raise JobError(
                f"{greeting['name']} resolves node 0's name, {heads[0]}, to its own loopback "
                f"address {addresses[0]}: look into its /etc/hosts"
            )
        problem = f"{greeting['name']}: {', '.join(problems)}"
        if waited >= wait_s:
            raise JobError(f"{problem} within {wait_s:.0f} s")
        if time.monotonic() >= remind:
            say(f"{problem} yet")
            remind = time.monotonic() + REMIND_S
        time.sleep(RETRY_S)


def _resolve(name: str) -> list[str]:
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class _WrongKey(Exception):
    """What listens speaks as a job's node 0 does, and does not have the key."""


def _greeted(greeting: dict[str, Any], address: str, port: int, key: bytes) -> Connection | None:
    """A connection to node 0 of this job; None if something else, or nothing, listens there.
    Raises _WrongKey."""
    try:
        sock = socket.create_connection((address, port), timeout=CONNECT_S)
    except OSError:
        return None
    connection = Connection(sock, key, MEMBER)
    try:
        connection.open()
        while not connection.has_peer and connection.receive_before_deadline():
            pass
        if connection.has_peer:
            connection.send(greeting)
        while not connection.inbox and connection.receive_before_deadline():
            pass
    except OSError:
        pass
    welcome = connection.inbox.pop(0) if connection.inbox else {}
    if "end" in welcome:
        raise JobError(str(welcome["end"]), is_of_others=True)
    if welcome.get("job") != greeting["job"]:
        connection.close()
        if connection.has_peer:
            raise _WrongKey
        return None
    return connection


def _plain(address: str) -> str:
    """An IPv4 address as such, also where a socket for both kinds reports it."""
    return address[7:] if address.startswith("::ffff:") else address
