"""Why a port is unreachable, and which interface is used."""

from __future__ import annotations

import os
import socket

import pytest

from provision_runtime.smoke import network


def test_why_a_port_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert network.why_unreachable("127.0.0.1", port) is None
        assert f"process {os.getpid()}" in network.listener(port)
    refused = network.why_unreachable("127.0.0.1", port)
    assert refused is not None
    assert refused == ("store-refused", f"nothing listens at 127.0.0.1:{port}")
    unknown = network.why_unreachable("no-such-host.invalid", port)
    assert unknown is not None
    assert unknown[0] == "master-unresolvable"
    assert network.listener(port) == ""


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
def test_the_interface_that_a_variable_chooses(
    backend: str, wish: str, expected: str | None
) -> None:
    variables = {network.INTERFACE_VARIABLES[backend]: wish}
    assert network.configured_interface(backend, variables, ["lo", "eth0", "eth1"]) == expected


@pytest.mark.parametrize(("backend", "wish"), [("gloo", "eth"), ("nccl", "=eth"), ("nccl", "ib")])
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(
    backend: str, wish: str
) -> None:
    with pytest.raises(LookupError, match="this host has only lo, eth0"):
        network.configured_interface(
            backend, {network.INTERFACE_VARIABLES[backend]: wish}, ["lo", "eth0"]
        )


def test_the_next_rank_elsewhere() -> None:
    hosts = ["a", "a", "b", "b"]
    assert [network.next_rank_elsewhere(rank, hosts) for rank in range(4)] == [2, 2, 0, 0]
    assert network.next_rank_elsewhere(0, ["a", "a"]) is None
