"""The ranks' facts reach rank 0 before the store of the rendezvous, and without it.

Different releases of torch may not understand each other's store, and then the difference itself,
which explains the failure, could not be exchanged. So rank 0 listens on the port after the store's
while the ranks meet, and every other rank sends one line of JSON. All of it is optional: if the port
is busy or filtered, the facts come through the store, as long as that works.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

from .outcome import Outcome, from_json

if TYPE_CHECKING:
    from .rank_env import RankEnv

# A rank's facts with all findings are some 10 KiB.
MOST_BYTES = 1 << 20
CONNECT_S = 3.0
PAUSE_S = 0.2
HIGHEST_PORT = 65535


class EarlyFacts:
    """On rank 0 the receiver, on every other rank the sender, in a thread that ends with the
    rendezvous."""

    def __init__(self, env: RankEnv) -> None:
        self._env = env
        self._port = env.master_port + 1
        self._outcomes: dict[int, Outcome] = {}
        self._stopped = threading.Event()
        self._server: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self, outcome: Outcome) -> None:
        """outcome: of this rank's phase facts."""
        if self._env.world_size == 1 or self._port > HIGHEST_PORT:
            return
        if self._env.rank == 0:
            try:
                self._server = _listen(self._port)
            except OSError:
                return
            self._thread = threading.Thread(target=self._receive, daemon=True)
        else:
            document = {"run": self._env.run, "rank": self._env.rank, "outcome": outcome.as_json()}
            line = json.dumps(document).encode() + b"\n"
            self._thread = threading.Thread(target=self._send, args=(line,), daemon=True)
        self._thread.start()

    def wait_until_sent(self, timeout_s: float) -> None:
        """For a rank that is about to end: rank 0 may be listening only now."""
        if self._env.rank != 0 and self._thread is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        self._stopped.set()
        if self._server is not None:
            self._server.close()

    def outcomes(self) -> dict[int, Outcome]:
        """On rank 0: what the other ranks have sent until now."""
        return dict(self._outcomes)

    def _receive(self) -> None:
        assert self._server is not None
        while not self._stopped.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:  # it was closed
                return
            with connection:
                connection.settimeout(CONNECT_S)
                self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        """Whatever else connects is not a rank of this run."""
        try:
            with connection.makefile("rb") as file:
                document = json.loads(file.readline(MOST_BYTES))
            rank = document["rank"]
            if document["run"] == self._env.run and 0 < rank < self._env.world_size:
                self._outcomes[rank] = from_json(document["outcome"])
                connection.sendall(b"\n")
        except (OSError, ValueError, KeyError, TypeError):
            return

    def _send(self, line: bytes) -> None:
        while not self._stopped.wait(PAUSE_S):
            try:
                address = (self._env.master_addr, self._port)
                with socket.create_connection(address, timeout=CONNECT_S) as connection:
                    connection.sendall(line)
                    if connection.recv(1):
                        return
            except OSError:
                continue


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
