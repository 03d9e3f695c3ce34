"""Why a port is unreachable, and which interface is used."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from provision_runtime.checks import interfaces
from provision_runtime.comm import listeners
from provision_runtime.smoke import network


def test_reasons_a_port_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert network.why_unreachable("127.0.0.1", port) is None
        assert f"process {os.getpid()}" in listeners.listener(port)
    refusal = network.why_unreachable("127.0.0.1", port)
    assert refusal is not None
    assert refusal == ("store-refused", f"nothing listens at 127.0.0.1:{port}")
    unknown = network.why_unreachable("no-such-host.invalid", port)
    assert unknown is not None
    assert unknown[0] == "master-unresolvable"
    assert listeners.listener(port) == ""


def test_a_loopback_interface_that_is_down_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a network namespace of its own, where the kernel has no route to 127.0.0.1."""

    def unreachable(self: socket.socket, address: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    assert network.why_unreachable("127.0.0.1", 29500) == (
        "loopback-down",
        "127.0.0.1:29500 is unreachable: the interface lo is down",
    )
    reason = network.why_unreachable("192.0.2.1", 29500)
    assert reason is not None
    assert reason[0] == "store-unreachable"


@pytest.mark.parametrize(
    ("backend", "wish", "expected"),
    [
        ("gloo", "eth1", "eth1"),
        ("gloo", "", None),
        ("nccl", "eth", "eth0"),
        ("nccl", "=eth1", "eth1"),
        ("nccl", "^docker,lo", None),
    ],
)
def test_interface_chosen_by_a_variable(backend: str, wish: str, expected: str | None) -> None:
    variables = {interfaces.INTERFACE_VARIABLES[backend]: wish}
    assert interfaces.configured_interface(backend, variables, ["lo", "eth0", "eth1"]) == expected


@pytest.mark.parametrize(("backend", "wish"), [("gloo", "eth"), ("nccl", "=eth"), ("nccl", "ib")])
def test_missing_interface_is_refused_listing_existing_ones(backend: str, wish: str) -> None:
    with pytest.raises(LookupError, match="there are only lo, eth0"):
        interfaces.configured_interface(
            backend, {interfaces.INTERFACE_VARIABLES[backend]: wish}, ["lo", "eth0"]
        )


def test_next_rank_on_another_host() -> None:
    hosts = ["a", "a", "b", "b"]
    assert [network.next_rank_elsewhere(rank, hosts) for rank in range(4)] == [2, 2, 0, 0]
    assert network.next_rank_elsewhere(0, ["a", "a"]) is None
