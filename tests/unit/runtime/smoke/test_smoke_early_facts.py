"""Facts reach rank 0 by a separate connection."""

from __future__ import annotations

import json
import socket
import time

from provision_runtime.smoke.early_facts import EarlyFacts
from provision_runtime.smoke.outcome import Outcome
from provision_runtime.smoke.rank_env import RankEnv
from tests.unit.runtime.smoke.builders import rank_env

PATIENCE_S = 20
FINE = Outcome().as_json()


def free_port() -> int:
    """The port before a free one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1]) - 1


def env(rank: int, port: int, attempt: str = "0") -> RankEnv:
    return rank_env(rank, world_size=3, master_addr="127.0.0.1", master_port=port, attempt=attempt)


def wait_for(receiver: EarlyFacts, ranks: set[int]) -> None:
    end = time.monotonic() + PATIENCE_S
    while set(receiver.outcomes()) != ranks:
        assert time.monotonic() < end, receiver.outcomes()
        time.sleep(0.01)


def test_facts_arrive_whoever_starts_first() -> None:
    port = free_port()
    first, receiver, last = (EarlyFacts(env(rank, port)) for rank in (1, 0, 2))
    first.start(Outcome("one"))
    receiver.start(Outcome())
    last.start(Outcome("two"))
    first.wait_until_sent(PATIENCE_S)
    last.wait_until_sent(PATIENCE_S)
    wait_for(receiver, {1, 2})
    assert receiver.outcomes() == {1: Outcome("one"), 2: Outcome("two")}
    receiver.stop()


def test_strangers_and_other_runs_are_not_taken() -> None:
    port = free_port()
    receiver = EarlyFacts(env(0, port))
    receiver.start(Outcome())
    strangers = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\n",
        b"[]\n",
        json.dumps({"run": env(1, port).run, "rank": 1, "outcome": {}}).encode() + b"\n",
        json.dumps({"run": env(1, port).run, "rank": 9, "outcome": FINE}).encode() + b"\n",
        json.dumps({"run": env(1, port, "7").run, "rank": 1, "outcome": FINE}).encode() + b"\n",
    ]
    for line in strangers:
        with socket.create_connection(("127.0.0.1", port + 1)) as connection:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    assert receiver.outcomes() == {}
    receiver.stop()


def test_a_busy_port_means_no_early_facts() -> None:
    with socket.create_server(("", 0)) as other:
        receiver = EarlyFacts(env(0, other.getsockname()[1] - 1))
        receiver.start(Outcome())
        receiver.stop()
        assert receiver.outcomes() == {}
