"""The nodes of a job find each other, and say who is missing. Nodes are threads here, on loopback."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from provision_runtime.job import channel, connection
from provision_runtime.job.channel import Head, Member
from provision_runtime.job.connection import Connection, Message
from provision_runtime.job.errors import JobError, Stopped

NAMES = ("n1", "n2", "n3")
WAIT_S = 20.0
KEY = b"a key of this job"


@contextlib.contextmanager
def listening(job: str, names: Sequence[str] = NAMES) -> Iterator[tuple[Head, list[int]]]:
    ports = connection.candidate_ports(KEY, f"{job}-{threading.get_ident()}")
    with contextlib.closing(Head(job, names, ports, KEY)) as head:
        yield head, ports


def joined(
    job: str,
    ports: Sequence[int],
    number: int,
    nodes: int = 3,
    name: str = "",
    key: bytes = KEY,
    wait_s: float = WAIT_S,
) -> Member:
    return Member(job, number, nodes, name or NAMES[number], ["127.0.0.1"], ports, wait_s, key)


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
            lambda: connection.greet(Message(job="other", node=1), "127.0.0.1", port, KEY)
        )
        head_thread = InThread(lambda: head.exchange("test", 0, list, WAIT_S))
        # Node 0 stops listening when every node is there.
        assert other_job.result() is None
        with contextlib.closing(joined("strangers", ports, 1, nodes=2)) as member:
            assert member.exchange("test", 1, list, WAIT_S) == [0, 1]
        assert head_thread.result() == [0, 1]
        talking.close()
        silent.close()


def test_where_a_port_is_taken_the_next_one_is_used() -> None:
    ports = connection.candidate_ports(KEY, "taken")
    with contextlib.closing(connection.listen(ports[:1])) as first:
        with contextlib.closing(connection.listen(ports)) as second:
            assert second.getsockname()[1] == ports[1]
        with pytest.raises(JobError, match=f"cannot listen on port {ports[0]}: Address already"):
            connection.listen(ports[:1])
        first.close()


def test_ports_follow_from_the_job_and_its_key() -> None:
    jobs = ((KEY, "4711.0"), (KEY, "4711.1"), (b"other", "4711.0"))
    assert len({tuple(connection.candidate_ports(*job)) for job in (*jobs, jobs[0])}) == 3
    ports = connection.candidate_ports(KEY, "job")
    assert len(set(ports)) == connection.CANDIDATES
    assert all(20000 <= port < 30000 for port in ports)


def test_an_unresolvable_head_is_named() -> None:
    with pytest.raises(JobError, match=r"^n2: the name no-such-host.invalid does not resolve here"):
        Member("job", 1, 2, "n2", ["no-such-host.invalid"], [20000], 0.0, KEY)


def test_a_head_that_resolves_to_loopback_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LOOPBACK_S", 0.0)
    ports = connection.candidate_ports(KEY, "nobody listens")[:1]
    with pytest.raises(
        JobError, match=r"n2 resolves node 0's name, localhost, to its own loopback"
    ):
        Member("job", 1, 2, "n2", ["localhost"], ports, WAIT_S, KEY)


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET])
def test_a_machine_that_lost_its_power_ends_its_connection(number: int) -> None:
    """Keepalive notices it, by one of these errors."""

    class DeadSocket(socket.socket):
        def recv(self, *_: int) -> bytes:
            raise OSError(number, os.strerror(number))

    with contextlib.closing(Connection(DeadSocket(), KEY, connection.HEAD)) as dead:
        assert dead.receive() is None


# Strangers


class Peer:
    """A connection by hand, to node 0 or from a node."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._file = sock.makefile("rb")

    def line(self) -> bytes:
        return self._file.readline().rstrip(b"\n")

    def is_closed(self) -> bool:
        with contextlib.suppress(OSError):
            while self._file.read(65536):
                pass
        return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextlib.contextmanager
def peers(head: Head, count: int) -> Iterator[list[Peer]]:
    port = head._listener.getsockname()[1]
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port))
            made.append(stack.enter_context(contextlib.closing(Peer(sock))))
        yield made


def run_two(job: str, head: Head, ports: Sequence[int]) -> None:
    """An exchange between node 0 and node 1, whatever strangers do."""
    thread = InThread(lambda: joined(job, ports, 1, nodes=2).exchange("test", 1, list, WAIT_S))
    assert head.exchange("test", 0, list, WAIT_S) == [0, 1]
    assert thread.result() == [0, 1]


STRANGE = {
    "brackets": b"[" * 200_000 + b"\n",
    "brackets without an end": b"[" * 200_000,
    "a nonce and brackets": b"0" * 32 + b"\n" + b"[" * 200_000 + b"\n",
    "the greeting of a node": b'{"job": "strange", "node": 1, "nodes": 2, "name": "n2"}\n',
    "a nonce and a greeting": b"0" * 32 + b'\n{"job": "strange", "node": 1, "nodes": 2}\n',
    "a MAC of zeros": b"0" * 32 + b"\n" + b"0" * 64 + b' {"end": "stop"}\n',
    "an end": b'{"end": "stop"}\n',
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": b"\0" * 100_000,
    "line ends": b"\n" * 100_000,
    "not ascii": b"0" * 32 + b"\n\xff\xfe" + b"0" * 70 + b"\n",
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_strangers_are_dropped_and_counted(text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with listening("strange", ("n1", "n2")) as (head, ports), peers(head, 3) as strangers:
        for stranger in strangers:
            with contextlib.suppress(OSError):
                stranger.socket.sendall(text)
        run_two("strange", head, ports)
        assert all(stranger.is_closed() for stranger in strangers)
    assert "3 connections without the job's key dropped, from 127.0.0.1" in capsys.readouterr().err


def test_more_silent_strangers_than_wait_at_once_keep_nobody_out() -> None:
    count = 2 * channel.MOST_STRANGERS
    with listening("crowd", ("n1", "n2")) as (head, ports), peers(head, count):
        run_two("crowd", head, ports)
        assert sum(head._dropped.values()) == count


def test_no_more_strangers_wait_at_once_than_the_limit() -> None:
    limit = channel.MOST_STRANGERS + 2
    with listening("limit", ("n1", "n2")) as (head, _), peers(head, limit + 30):
        with pytest.raises(JobError, match="no answer from n2"):
            head.exchange("test", 0, list, 1.0)
        assert len(head._strangers) == limit
        assert sum(head._dropped.values()) == 30


def test_who_greets_with_more_than_a_greeting_is_dropped() -> None:
    with listening("long", ("n1", "n2")) as (head, _), peers(head, 1) as [stranger]:
        stranger.socket.sendall(b"0" * (connection.LONGEST_GREETING + 1))
        with pytest.raises(JobError, match="no answer from n2"):
            head.exchange("test", 0, list, 0.5)
        assert sum(head._dropped.values()) == 1


def test_nobody_is_heard_when_all_nodes_are_there() -> None:
    with listening("closed", ("n1", "n2")) as (head, ports):
        thread = InThread(lambda: joined("closed", ports, 1, nodes=2))
        run = InThread(lambda: head.exchange("test", 0, list, WAIT_S))
        member = thread.result()
        with contextlib.closing(member):
            member.exchange("test", 1, list, WAIT_S)
            run.result()
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", ports[0]))


def test_a_node_with_another_key_takes_no_place_and_is_told() -> None:
    with listening("keys", ("n1", "n2")) as (head, ports):
        other = InThread(lambda: joined("keys", ports, 1, nodes=2, key=b"other", wait_s=0.0))
        run_two("keys", head, ports)
        assert "does not answer with the job's key" in str(other.result())


def exchanged_lines(job: str) -> tuple[list[bytes], list[bytes]]:
    """What a node and node 0 said to each other, heard by who stands between them."""
    heard: tuple[list[bytes], list[bytes]] = ([], [])
    with listening(job, ("n1", "n2")) as (head, _), socket.create_server(("127.0.0.1", 0)) as door:
        between = [door.getsockname()[1]]
        node = InThread(lambda: joined(job, between, 1, nodes=2).exchange("t", 1, list, WAIT_S))
        run = InThread(lambda: head.exchange("t", 0, list, WAIT_S))
        sock, _ = door.accept()
        with contextlib.closing(Peer(sock)) as of_node, peers(head, 1) as [of_head]:
            for lines, source, target in (
                (heard[0], of_node, of_head),  # its nonce
                (heard[1], of_head, of_node),  # node 0's nonce
                (heard[0], of_node, of_head),  # the greeting
                (heard[1], of_head, of_node),  # the welcome
                (heard[0], of_node, of_head),  # the payload
                (heard[1], of_head, of_node),  # the decision
            ):
                lines.append(source.line())
                target.socket.sendall(lines[-1] + b"\n")
            assert (node.result(), run.result()) == ([0, 1], [0, 1])
    return heard


def test_what_was_heard_is_of_no_use_again() -> None:
    """Neither towards node 0 nor towards a node."""
    of_node, of_head = exchanged_lines("heard")
    with listening("heard", ("n1", "n2")) as (head, ports), peers(head, 1) as [stranger]:
        stranger.socket.sendall(b"\n".join([*of_node, b""]))
        run_two("heard", head, ports)
        assert sum(head._dropped.values()) == 1
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        node = InThread(lambda: joined("heard", [port], 1, nodes=2, wait_s=0.0))
        sock, _ = door.accept()
        with contextlib.closing(Peer(sock)) as stranger:
            stranger.socket.sendall(b"\n".join([*of_head, b""]))
            assert "does not answer with the job's key" in str(node.result())


def test_who_stands_between_can_change_nothing() -> None:
    """A message that is changed, repeated or sent back ends the connection, and so the job."""
    for change in ("changed", "repeated", "sent back"):
        job = f"between {change}"
        with (
            listening(job, ("n1", "n2")) as (head, _),
            socket.create_server(("127.0.0.1", 0)) as door,
        ):
            between = [door.getsockname()[1]]
            node = InThread(lambda: joined(job, between, 1, nodes=2))  # noqa: B023
            run = InThread(lambda: head.exchange("t", 0, list, WAIT_S))
            sock, _ = door.accept()
            with contextlib.closing(Peer(sock)) as of_node, peers(head, 1) as [of_head]:
                of_head.socket.sendall(of_node.line() + b"\n")
                of_node.socket.sendall(of_head.line() + b"\n")
                greeting = of_node.line()
                of_head.socket.sendall(greeting + b"\n")
                welcome = of_head.line()
                of_node.socket.sendall(welcome + b"\n")
                member = node.result()
                assert isinstance(member, Member)
                with contextlib.closing(member):
                    member.send_to_all(Message(topic="t", payload=1))
                    payload = of_node.line()
                    head.send_to_all(Message(topic="t", payload=1))
                    wrong = {
                        "changed": payload.replace(b'"payload": 1', b'"payload": 7'),
                        "repeated": greeting,
                        "sent back": of_head.line(),
                    }[change]
                    of_head.socket.sendall(wrong + b"\n")
                    assert str(run.result()) == "n2 is gone"


@pytest.mark.parametrize("message", [{"stop": "9"}, {"end": 1}, {"nonsense": 1}, [], 7, None])
def test_a_message_of_another_shape_ends_its_connection(message: Any) -> None:
    def speak() -> None:
        with contextlib.closing(joined("shapes", ports, 1, nodes=2)) as member:
            member._connection._send_line(json.dumps(message).encode())
            member._connection.socket.recv(1)  # until node 0 has closed it

    with listening("shapes", ("n1", "n2")) as (head, ports):
        thread = InThread(speak)
        with pytest.raises(JobError, match="n2 is gone"):
            head.exchange("test", 0, list, WAIT_S)
        head.close()
        thread.result()
