"""The nodes of a job find each other, and say who is missing. Nodes are threads here, on loopback."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from provision_runtime.job import channel
from provision_runtime.job.channel import Head, Member
from provision_runtime.job.errors import JobError, Stopped

NAMES = ("n1", "n2", "n3")
WAIT_S = 20.0


@contextlib.contextmanager
def listening(job: str, names: Sequence[str] = NAMES) -> Iterator[tuple[Head, list[int]]]:
    ports = channel.candidate_ports(f"{job}-{threading.get_ident()}")
    with contextlib.closing(Head(job, names, ports)) as head:
        yield head, ports


def joined(job: str, ports: Sequence[int], number: int, nodes: int = 3, name: str = "") -> Member:
    return Member(job, number, nodes, name or NAMES[number], ["127.0.0.1"], ports, WAIT_S)


class InThread:
    """A call in a thread; its result or error when it has ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._result: Any = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except (JobError, Stopped) as error:
            self._result = error

    def result(self) -> Any:
        self._thread.join()
        return self._result


def take_part(job: str, ports: Sequence[int], number: int, payload: object) -> Callable[[], Any]:
    def run() -> Any:
        with contextlib.closing(joined(job, ports, number)) as member:
            return member.exchange("test", payload, lambda _: None, WAIT_S)

    return run


def test_node_0_decides_on_all_payloads_in_their_order() -> None:
    with listening("all") as (head, ports):
        threads = [InThread(take_part("all", ports, number, number * 10)) for number in (2, 1)]
        assert head.exchange("test", 0, list, WAIT_S) == [0, 10, 20]
        assert [thread.result() for thread in threads] == [[0, 10, 20]] * 2
        assert (head.address, head.local_address) == ("127.0.0.1", "127.0.0.1")


def test_a_job_of_one_node_decides_alone() -> None:
    assert channel.Channel().exchange("test", 7, list, WAIT_S) == [7]


def test_missing_nodes_are_named() -> None:
    with listening("missing") as (head, ports):
        thread = InThread(take_part("missing", ports, 1, None))
        with pytest.raises(JobError, match=r"^no answer from n3 within 1 s \(test\)$"):
            head.exchange("test", None, list, 1.0)
        assert str(thread.result()) == "no answer from n3 within 1 s (test)"


def test_a_refusal_of_node_0_reaches_all() -> None:
    def refuse(_: object) -> None:
        raise JobError("n2 has another driver")

    with listening("refused") as (head, ports):
        threads = [InThread(take_part("refused", ports, number, None)) for number in (1, 2)]
        with pytest.raises(JobError, match="another driver"):
            head.exchange("test", None, refuse, WAIT_S)
        assert [str(thread.result()) for thread in threads] == ["n2 has another driver"] * 2


def test_a_node_that_leaves_is_named() -> None:
    with listening("leaving") as (head, ports):
        thread = InThread(lambda: joined("leaving", ports, 2).close())
        with pytest.raises(JobError, match=r"^n3 is gone$"):
            head.exchange("test", None, list, WAIT_S)
        thread.result()


def test_a_stop_reaches_the_others() -> None:
    def stop() -> None:
        with contextlib.closing(joined("stopping", ports, 1)) as member:
            member.announce_stop(10)

    with listening("stopping") as (head, ports):
        thread = InThread(stop)
        with pytest.raises(Stopped) as caught:
            head.exchange("test", None, list, WAIT_S)
        assert caught.value.number == 10
        thread.result()


def test_two_nodes_of_one_number_are_both_named() -> None:
    with listening("twice") as (head, ports):
        threads = [
            InThread(lambda name=name: joined("twice", ports, 1, name=name))  # type: ignore[misc]
            for name in ("n2", "n7")
        ]
        with pytest.raises(JobError, match=r"n[27] and n[27] both say that they are node 1"):
            head.exchange("test", None, list, WAIT_S)
        for thread in threads:
            member = thread.result()
            if isinstance(member, Member):
                member.close()


def test_a_node_with_another_number_of_nodes_is_refused() -> None:
    with listening("count") as (head, ports):
        thread = InThread(lambda: joined("count", ports, 1, nodes=2))
        with pytest.raises(JobError, match="n2 says that it is node 1 of 2, but the job has 3"):
            head.exchange("test", None, list, WAIT_S)
        assert "the job has 3 nodes" in str(thread.result())


def test_other_programs_on_the_port_do_no_harm() -> None:
    with listening("strangers", ("n1", "n2")) as (head, ports):
        port = head._listener.getsockname()[1]
        talking = socket.create_connection(("127.0.0.1", port))
        talking.sendall(b"GET / HTTP/1.1\r\n\r\n")
        silent = socket.create_connection(("127.0.0.1", port))
        other_job = InThread(
            lambda: channel._greeted({"job": "other", "node": 1}, "127.0.0.1", port)
        )
        thread = InThread(
            lambda: joined("strangers", ports, 1, nodes=2).exchange("test", 1, list, WAIT_S)
        )
        assert head.exchange("test", 0, list, WAIT_S) == [0, 1]
        assert (thread.result(), other_job.result()) == ([0, 1], None)
        talking.close()
        silent.close()


def test_where_a_port_is_taken_the_next_one_is_used() -> None:
    ports = channel.candidate_ports("taken")
    with contextlib.closing(channel._listen(ports[:1])) as first:
        with contextlib.closing(channel._listen(ports)) as second:
            assert second.getsockname()[1] == ports[1]
        with pytest.raises(JobError, match=f"cannot listen on port {ports[0]}: Address already"):
            channel._listen(ports[:1])
        first.close()


def test_ports_follow_from_the_job() -> None:
    assert channel.candidate_ports("4711.0") == channel.candidate_ports("4711.0")
    assert channel.candidate_ports("4711.0") != channel.candidate_ports("4711.1")
    assert channel.candidate_ports("4711.0", 29500) == [29500]
    ports = channel.candidate_ports("job")
    assert len(set(ports)) == channel.CANDIDATES
    assert all(20000 <= port < 30000 for port in ports)


def test_an_unresolvable_head_is_named() -> None:
    with pytest.raises(JobError, match=r"^n2: the name no-such-host.invalid does not resolve here"):
        Member("job", 1, 2, "n2", ["no-such-host.invalid"], [20000], 0.0)


def test_a_head_that_resolves_to_loopback_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LOOPBACK_S", 0.0)
    ports = channel.candidate_ports("nobody listens")[:1]
    with pytest.raises(
        JobError, match=r"n2 resolves node 0's name, localhost, to its own loopback"
    ):
        Member("job", 1, 2, "n2", ["localhost"], ports, WAIT_S)


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET])
def test_a_machine_that_lost_its_power_ends_its_connection(number: int) -> None:
    """Keepalive notices it, by one of these errors."""

    class DeadSocket(socket.socket):
        def recv(self, *_: int) -> bytes:
            raise OSError(number, os.strerror(number))

    with contextlib.closing(channel.Connection(DeadSocket())) as connection:
        assert connection.receive() is False
