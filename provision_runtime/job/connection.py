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
from typing import Any, Optional

from ..dataclass import frozen
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


@frozen
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


def candidate_ports(key: bytes, job: str) -> list[int]:
    """The ports where node 0 may listen, in the order in which it tries them."""
    first = int.from_bytes(hmac.digest(key, b"port " + job.encode(), "sha256")[:8], "big")
    return [FIRST_PORT + (first + number) % PORTS for number in range(CANDIDATES)]


class Connection:
    """One connection: messages out and in. side: HEAD or MEMBER, which this one is."""

    def __init__(self, sock: socket.socket, key: bytes, side: bytes) -> None:
        self.socket = sock
        # Of the node at the other end: its number and name; before they are known, its address.
        self.number, self.name, self.address = 0, "node 0", ""
        self._key, self._side = key, side
        self._nonce = secrets.token_hex(NONCE_BYTES).encode()
        self._peer_nonce = b""
        self._sent = self._accepted = 0
        self._received = b""
        sock.settimeout(GREETING_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A firewall may forget a silent connection; and a machine that lost its power is noticed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)

    def open(self) -> None:
        """Send this side's nonce. Raises OSError."""
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
        self.socket.sendall(mac + b" " + text + b"\n")

    def receive(self) -> list[Message] | None:
        """The messages that have arrived; None at the end of the connection, which a line ends that is
        no message of the other side. Blocks for moments if there is nothing to read."""
        try:
            data = self.socket.recv(65536)
        except OSError as error:
            return None if error.errno else []  # our own time-out has no number; the kernel's has
        *lines, self._received = (self._received + data).split(b"\n")
        messages: list[Message] = []
        for line in lines:
            if not self._peer_nonce:
                if len(line) != 2 * NONCE_BYTES or not line.isalnum():
                    return None
                self._peer_nonce = line
                continue
            other = MEMBER if self._side == HEAD else HEAD
            mac, text = line[:MAC_DIGITS], line[MAC_DIGITS + 1 :]
            if not hmac.compare_digest(mac, self._mac(other, self._accepted, text)):
                return None
            self._accepted += 1
            message = parse_message(text)
            if message is None:
                return None
            messages.append(message)
        longest = LONGEST_LINE if self._accepted else LONGEST_GREETING
        return messages if data and len(self._received) <= longest else None

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


def greet(greeting: Message, address: str, port: int, key: bytes) -> Connection | None:
    """A connection to node 0 of this job; None if something else, or nothing, listens there, or it has
    another key."""
    try:
        sock = socket.create_connection((address, port), timeout=CONNECT_S)
    except OSError:
        return None
    connection = Connection(sock, key, MEMBER)
    end = time.monotonic() + GREETING_S
    replies: list[Message] | None = []
    has_greeted = False
    try:
        connection.open()
        while replies == [] and time.monotonic() < end:
            replies = connection.receive()
            if connection.has_peer and not has_greeted:
                connection.send(greeting)
                has_greeted = True
    except OSError:
        pass
    welcome = replies[0] if replies else Message()
    if welcome.end is not None:
        raise JobError(welcome.end, is_remote=True)
    if welcome.job != greeting.job:
        connection.close()
        return None
    return connection


def plain_address(address: str) -> str:
    """An IPv4 address as such, also where a socket for both kinds reports it."""
    return address[7:] if address.startswith("::ffff:") else address
