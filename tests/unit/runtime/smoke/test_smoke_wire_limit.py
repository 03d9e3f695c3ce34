"""Bandwidth without a curve is judged by the slowest wire of the ring."""

from __future__ import annotations

from typing import Any

import pytest

from provision_runtime.facts import wires
from provision_runtime.smoke import bandwidth, wire_limit
from tests.unit.runtime.smoke.builders import GIB, line

MIB = 1 << 20
H100 = "NVIDIA H100 80GB HBM3"


def switched(gpus: int, links: int, gb_s: float) -> dict[str, Any]:
    """All GPUs at one NVSwitch: every link leads to every GPU."""
    names = [f"GPU-{number}" for number in range(gpus)]
    return {
        name: {
            "links_gb_s": [gb_s] * links,
            "links_to": {peer: links for peer in names if peer != name},
        }
        for name in names
    }


def host(
    name: str = "n1",
    *,
    gpus: int = 8,
    nvlink: dict[str, Any] | None = None,
    generation: int = 5,
    lanes: int = 16,
    ports: int = 0,
    port_gb_s: float = 50.0,
    driver: str = "mlx5_core",
    interfaces: dict[str, float] | None = None,
    device: str = H100,
) -> wire_limit.HostWires:
    pcie = []
    for number in range(gpus):
        rate = wires.pcie_gb_s(generation, lanes)
        pcie.append(
            {"address": f"a{number}", "generation": generation, "lanes": lanes, "gb_s": rate}
        )
    facts: Any = {
        "nvlink": nvlink or {},
        "pcie": pcie,
        "ports": [{"gb_s": port_gb_s, "driver": driver}] * ports,
        "interfaces": interfaces or {},
    }
    names = tuple((f"GPU-{number}", f"a{number}") for number in range(gpus))
    return wire_limit.HostWires(name, names, facts, "eth0", device)


def judged(
    busbw: float, hosts: list[wire_limit.HostWires], size: int = 4 * GIB, device: str = H100
) -> tuple[str, list[str]]:
    """The line's remark and the ids of the findings."""
    ranks = sum(len(host_wires.gpus) for host_wires in hosts)
    hardware = bandwidth.Hardware(device, ranks, len(hosts), "mlx5_core", True)
    measured = line(busbw, size)
    limit = wire_limit.wire_limit(hosts)
    findings = bandwidth.judge_lines([measured], hardware, bandwidth.load_curves(), limit)
    return measured["judged"], [finding.id for finding in findings]


NVLINK_8 = switched(8, 18, 26.562)
TWO_NODES = [host(name, nvlink=NVLINK_8, ports=8) for name in ("n1", "n2")]


@pytest.mark.parametrize(
    ("name", "busbw", "hosts"),
    [
        ("2x8 H100 over TCP", 1.1, TWO_NODES),
        ("2x8 H100, InfiniBand at half", 180.0, TWO_NODES),
        ("4xH100 without NVLink traffic", 25.0, [host(gpus=4, nvlink=switched(4, 18, 26.562))]),
        ("2xH100 without peer access", 12.0, [host(gpus=2, nvlink=switched(2, 18, 26.562))]),
        ("2xH100 PCIe in x8 slots of generation 3", 12.0, [host(gpus=2)]),
    ],
)
def test_sick_clusters_do_not_pass(
    name: str, busbw: float, hosts: list[wire_limit.HostWires]
) -> None:
    remark, findings = judged(busbw, hosts)
    assert findings == ["bandwidth-low"], (name, remark)


@pytest.mark.parametrize(
    ("name", "busbw", "hosts"),
    [
        ("2x8 H100 with 400 Gb/s rails", 365.0, TWO_NODES),
        ("4xH100", 340.0, [host(gpus=4, nvlink=switched(4, 18, 26.562))]),
        ("8xH100 PCIe without NVSwitch", 35.0, [host()]),
        ("8 GPUs through the host's memory", 18.5, [host(generation=4)]),
        ("2x1 over 25 GbE", 2.4, [host(n, gpus=1, interfaces={"eth0": 3.1}) for n in "ab"]),
        ("2x8 over 100 GbE", 6.0, [host(n, gpus=8, interfaces={"eth0": 12.5}) for n in "ab"]),
        ("8xH800, ring", 160.0, [host(nvlink=switched(8, 8, 26.562))]),
    ],
)
def test_healthy_clusters_pass(name: str, busbw: float, hosts: list[wire_limit.HostWires]) -> None:
    device = "NVIDIA L40S" if "GPUs" in name else "other GPU"
    remark, findings = judged(busbw, hosts, device=device)
    assert findings == [], (name, remark)
    assert remark.startswith("fine"), (name, remark)


def test_a_pair_in_a_mesh_has_only_the_links_between_it() -> None:
    """Four links lead from each A100 of a board of four to each other one, of twelve in all."""
    mesh = {
        f"GPU-{number}": {
            "links_gb_s": [25.0] * 12,
            "links_to": {f"GPU-{peer}": 4 for peer in range(4) if peer != number},
        }
        for number in range(4)
    }
    pair = wire_limit.wire_limit([host(gpus=2, nvlink=mesh)])
    board = wire_limit.wire_limit([host(gpus=4, nvlink=mesh)])
    assert pair is not None
    assert board is not None
    assert (pair.gb_s, board.gb_s) == (100.0, 300.0)


def test_bridged_pairs_are_a_ring_over_pcie() -> None:
    bridged = {
        f"GPU-{number}": {"links_gb_s": [25.0] * 12, "links_to": {f"GPU-{number ^ 1}": 12}}
        for number in range(4)
    }
    limit = wire_limit.wire_limit([host(gpus=4, nvlink=bridged)])
    assert limit is not None
    assert limit.wire == "PCIe 5 x16 of the GPU at a0 of n1"


def test_the_slowest_slot_is_named() -> None:
    slow = host("n2", gpus=2)
    rate = wires.pcie_gb_s(3, 8)
    slow.wires["pcie"][1] = {"address": "a1", "generation": 3, "lanes": 8, "gb_s": rate}
    limit = wire_limit.wire_limit([slow])
    assert limit is not None
    assert limit.wire == "PCIe 3 x8 of the GPU at a1 of n2"


@pytest.mark.parametrize(
    "hosts",
    [
        [host("n1", gpus=8, nvlink=NVLINK_8), host("n2", gpus=8, nvlink=NVLINK_8)],
        [host(name, gpus=8, nvlink=NVLINK_8, ports=4, driver="efa") for name in ("n1", "n2")],
        [host(device="NVIDIA GeForce RTX 4090")],
        [host(gpus=1)],
    ],
    ids=["no network rate", "EFA", "no peer access", "one GPU"],
)
def test_an_unknown_wire_is_no_limit(hosts: list[wire_limit.HostWires]) -> None:
    assert wire_limit.wire_limit(hosts) is None
    assert judged(1.0, hosts, device="other GPU") == (bandwidth.UNKNOWN, [])


def test_small_messages_are_not_judged() -> None:
    assert judged(1.0, TWO_NODES, 256 * MIB) == (bandwidth.TOO_SMALL, [])
    assert judged(1.0, TWO_NODES, 512 * MIB)[1] == ["bandwidth-low"]


def test_the_quick_profile_judges_where_the_curve_begins_later() -> None:
    one_node = [host(nvlink=NVLINK_8)]
    assert judged(30.0, one_node, 512 * MIB)[1] == ["bandwidth-low"]
    assert judged(400.0, one_node, 512 * MIB)[1] == []
    # From 1 GiB on the curve of 8xH100 judges: 460 GB/s are expected.
    assert judged(380.0, one_node, GIB)[1] == ["bandwidth-reduced"]


def test_a_pair_of_ranks_is_not_judged_by_all_rails() -> None:
    hardware = bandwidth.Hardware(H100, 16, 2, "mlx5_core", True)
    limit = wire_limit.wire_limit(TWO_NODES)
    measured = line(45.0, collective="send_recv")
    assert bandwidth.judge_lines([measured], hardware, bandwidth.load_curves(), limit) == ()
