"""One connection between two nodes of a job: signed messages, a line of JSON each, over TCP.

The nodes know each other by the job's key. Both sides of a connection choose a nonce; every message
carries an HMAC by the key, the nonces, its sender and its number, so nobody else can say, repeat or
change one. Messages are not encrypted: they hold facts of nodes, and no secret.

The port follows from key and job, so that only the nodes know it; where it is taken, the next one is
used.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ..report.codec import decode
from .errors import JobError

# Below the ports that Linux gives to outgoing connections (32768), above those of most services.
FIRST_PORT, PORTS = 20000, 10000
CANDIDATES = 16
CONNECT_S = 3.0
# How long node 0 may take to greet: any other program there sends something else, or nothing.
GREETING_S = 5.0
# The limits of a message and of a greeting.
LONGEST_LINE, LONGEST_GREETING = 1 << 20, 4096
HEAD, MEMBER = b"head", b"member"
NONCE_BYTES = 16
MAC_DIGITS = 64


@dataclass(frozen=True)
class Message:
    """What nodes send each other; the fields of other messages are None.

    job, node, nodes, name: a node's greeting; job alone: node 0's welcome. topic with payload or
    decision: an exchange. end, stop, done: the job ends, a signal stops it, this node's command has
    succeeded.
    """

    job: Optional[str] = None
    node: Optional[int] = None
    nodes: Optional[int] = None
    name: Optional[str] = None
    topic: Optional[str] = None
    payload: Any = None
    decision: Any = None
    end: Optional[str] = None
    stop: Optional[int] = None
    done: Optional[bool] = None

    def to_line(self) -> bytes:
        present = {name: value for name, value in vars(self).items() if value is not None}
        return json.dumps(present).encode()


def parse_message(text: bytes) -> Message | None:
    """None if it is no message."""
    try:
        message: Message = decode(Message, json.loads(text), "message")
    except (ValueError, RecursionError):
        return None
    return message


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
        self.inbox: list[Message] = []
        self.opened = time.monotonic()
        self.address = ""
        # Whether the other side has shown that it has the key.
        self.has_key = False
        self._key, self._side = key, side
        self._nonce = secrets.token_hex(NONCE_BYTES).encode()
        self._peer_nonce = b""
        self._sent = self._accepted = 0
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

    def send(self, message: Message) -> None:
        """Raises OSError if the other side is gone."""
        self._send_line(message.to_line())

    def _send_line(self, text: bytes) -> None:
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
        longest = LONGEST_LINE if self.has_key else LONGEST_GREETING
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
        if not hmac.compare_digest(mac, self._mac(other, self._accepted, text)):
            return False
        self._accepted += 1
        self.has_key = True
        message = parse_message(text)
        if message is not None:
            self.inbox.append(message)
        return message is not None

    def _mac(self, side: bytes, number: int, text: bytes) -> bytes:
        first, second = sorted((self._nonce, self._peer_nonce))
        head = b"%s %s %s %d " % (first, second, side, number)
        return hmac.digest(self._key, head + text, "sha256").hex().encode()

    def close(self) -> None:
        self.socket.close()


def listen(ports: Sequence[int]) -> socket.socket:
    """A listener on the first free port, for IPv6 and IPv4 where the machine has both."""
    problem = ""
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    for port in ports:
        try:
            # It reuses the address of a job that was requeued at once, whose connections may still
            # be closing.
            return socket.create_server(
                ("", port), family=family, backlog=1024, dualstack_ipv6=has_both
            )
        except OSError as error:
            problem = error.strerror or str(error)
    tried = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"
    raise JobError(f"node 0 cannot listen on {tried}: {problem}")


class WrongKey(Exception):
    """What listens speaks as a job's node 0 does, and does not have the key."""


def greet(greeting: Message, address: str, port: int, key: bytes) -> Connection | None:
    """A connection to node 0 of this job; None if something else, or nothing, listens there.
    Raises WrongKey."""
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
    welcome = connection.inbox.pop(0) if connection.inbox else Message()
    if welcome.end is not None:
        raise JobError(welcome.end, is_remote=True)
    if welcome.job != greeting.job:
        connection.close()
        if connection.has_peer:
            raise WrongKey
        return None
    return connection


def plain_address(address: str) -> str:
    """An IPv4 address as such, also where a socket for both kinds reports it."""
    return address[7:] if address.startswith("::ffff:") else address
