"""Bandwidth without a curve is judged by the slowest wire of the ring."""

from __future__ import annotations

from typing import Any

import pytest

from provision_runtime.facts import nccl_log, wires
from provision_runtime.smoke import bandwidth, wire_limit
from provision_runtime.smoke.phases import collectives
from provision_runtime.smoke.transport import RankTransports
from tests.unit.runtime.smoke.builders import GIB, H100, host_wires, line, nvlinks

MIB = 1 << 20


def judged(
    busbw: float, hosts: list[wire_limit.HostWires], size: int = 4 * GIB, device: str = H100
) -> tuple[str, list[str]]:
    """The line's remark and the ids of the findings."""
    ranks = sum(len(each.gpus) for each in hosts)
    hardware = bandwidth.Hardware(device, ranks, len(hosts), True)
    measured = line(busbw, size)
    limit = wire_limit.wire_limit(hosts)
    findings = bandwidth.judge_lines([measured], hardware, limit)
    return measured["judged"], [finding.id for finding in findings]


NVLINK_8 = nvlinks(8, 18, 26.562)
TWO_NODES = [host_wires(name, nvlink=NVLINK_8, ports=8) for name in ("n1", "n2")]


@pytest.mark.parametrize(
    ("name", "busbw", "hosts"),
    [
        ("2x8 H100 over TCP", 1.1, TWO_NODES),
        ("2x8 H100, InfiniBand at half", 180.0, TWO_NODES),
        (
            "4xH100 without NVLink traffic",
            25.0,
            [host_wires(gpus=4, nvlink=nvlinks(4, 18, 26.562))],
        ),
        ("2xH100 without peer access", 12.0, [host_wires(gpus=2, nvlink=nvlinks(2, 18, 26.562))]),
        ("2xH100 PCIe in x8 slots of generation 3", 12.0, [host_wires(gpus=2)]),
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
        ("4xH100", 340.0, [host_wires(gpus=4, nvlink=nvlinks(4, 18, 26.562))]),
        ("8xH100 PCIe without NVSwitch", 35.0, [host_wires()]),
        ("8 GPUs through the host's memory", 18.5, [host_wires(generation=4)]),
        ("2x1 over 25 GbE", 2.4, [host_wires(n, gpus=1, interfaces={"eth0": 3.1}) for n in "ab"]),
        ("2x8 over 100 GbE", 6.0, [host_wires(n, gpus=8, interfaces={"eth0": 12.5}) for n in "ab"]),
        (
            "8xH800, ring",
            160.0,
            [host_wires(nvlink=nvlinks(8, 8, 26.562), device="NVIDIA H800")],
        ),
    ],
)
def test_healthy_clusters_pass(name: str, busbw: float, hosts: list[wire_limit.HostWires]) -> None:
    # A GPU without a curve.
    remark, findings = judged(busbw, hosts, device="NVIDIA L40S")
    assert findings == [], (name, remark)
    assert remark.startswith("fine"), (name, remark)


def test_a_pair_in_a_mesh_has_only_the_links_between_it() -> None:
    """Four links lead from each A100 of a board of four to each other one, of twelve in all."""
    mesh, device = nvlinks(4, 12, 25.0, "mesh"), "NVIDIA A100-SXM4-40GB"
    pair = wire_limit.wire_limit([host_wires(gpus=2, nvlink=mesh, device=device)])
    board = wire_limit.wire_limit([host_wires(gpus=4, nvlink=mesh, device=device)])
    assert pair is not None
    assert board is not None
    assert (pair.slowest.gb_s, board.slowest.gb_s) == (100.0, 300.0)


def test_bridged_pairs_are_a_ring_over_pcie() -> None:
    bridged = {
        f"GPU-{number}": {"links_gb_s": [25.0] * 12, "links_to": {f"GPU-{number ^ 1}": 12}}
        for number in range(4)
    }
    limit = wire_limit.wire_limit([host_wires(gpus=4, nvlink=bridged)])
    assert limit is not None
    assert limit.slowest.name == "the PCIe 5 x16 lanes of the GPU at a0 of n1"


def test_the_slowest_slot_is_named() -> None:
    slow = host_wires("n2", gpus=2)
    rate = wires.pcie_gb_s(3, 8)
    link = slow.wires["pcie"][1]
    link["generation"], link["lanes"], link["gb_s"] = 3, 8, rate
    limit = wire_limit.wire_limit([slow])
    assert limit is not None
    assert limit.slowest.name == "the PCIe 3 x8 lanes (of x16) of the GPU at a1 of n2"


@pytest.mark.parametrize(
    "hosts",
    [
        [host_wires("n1", gpus=8, nvlink=NVLINK_8), host_wires("n2", gpus=8, nvlink=NVLINK_8)],
        [host_wires(gpus=1)],
        [host_wires(n, gpus=4, nvlink=NVLINK_8, device="NVIDIA GB200") for n in "ab"],
    ],
    ids=["no network rate", "one GPU", "no network rate of a rack"],
)
def test_an_unknown_wire_is_no_limit(hosts: list[wire_limit.HostWires]) -> None:
    assert wire_limit.wire_limit(hosts) is None
    assert judged(1.0, hosts, device="other GPU") == (bandwidth.UNKNOWN, [])


def test_small_messages_are_not_judged() -> None:
    assert judged(1.0, TWO_NODES, 256 * MIB) == (bandwidth.TOO_SMALL, [])
    assert judged(1.0, TWO_NODES, 512 * MIB)[1] == ["bandwidth-low"]


def test_the_quick_profile_judges_at_its_largest_size() -> None:
    one_node = [host_wires(nvlink=NVLINK_8)]
    assert judged(30.0, one_node, 512 * MIB)[1] == ["bandwidth-low"]
    assert judged(400.0, one_node, 512 * MIB)[1] == []
    assert judged(380.0, one_node, GIB)[1] == ["bandwidth-reduced"]


def port(path: str = "", gb_s: float = 50.0, link_layer: str = "InfiniBand") -> dict[str, Any]:
    fields = {"path": path, "gb_s": gb_s, "link_layer": link_layer}
    return {"name": "mlx5_0", "port": 1, "driver": "mlx5_core", **fields}


def at_switches(host: wire_limit.HostWires, *switches: str) -> wire_limit.HostWires:
    """The host with its GPUs below these ports of its processors, in order."""
    for link, switch in zip(host.wires["pcie"], switches):
        link["path"] = f"pci0000:00/{switch}/{link['address']}"
    return host


@pytest.mark.parametrize(
    ("gpus", "ports", "count"),
    [
        # Storage has ports of another rate, or at another switch.
        (["a", "b"], [port("pci0000:00/a/1"), port("pci0000:00/b/2"), port("pci0000:00/c/3")], 2),
        (["a", "b"], [port("pci0000:00/a/1"), port("pci0000:00/b/2"), port("", 12.5)], 2),
        (["a"], [port("pci0000:00/a/1"), port("pci0000:00/a/2"), port("pci0000:00/b/3")], 2),
        # Four of one Grace Hopper; sixteen of eight GPUs; one that two GPUs share.
        ([""], [port()] * 4, 4),
        ([""] * 8, [port()] * 16, 16),
        (["a", "b"], [port()], 1),
        # In a virtual machine, eight of twelve.
        ([""] * 8, [port()] * 12, 8),
    ],
)
def test_ports_belong_to_gpus_by_topology(
    gpus: list[str], ports: list[dict[str, Any]], count: int
) -> None:
    host = at_switches(host_wires(gpus=len(gpus), ports=1), *filter(None, gpus))
    host.wires["ports"][:] = ports  # type: ignore[assignment]
    assert len(wire_limit.ports_of_gpus(host)) == count


def test_a_host_with_fewer_ports_than_the_others_is_warned_of() -> None:
    hosts = [host_wires(name, nvlink=NVLINK_8, ports=8) for name in "abc"]
    hosts.append(host_wires("d", nvlink=NVLINK_8, ports=4))
    remark, findings = judged(190.0, hosts)
    assert (remark, findings) == ("95% of what 4 x 400 Gb/s of d allow", ["bandwidth-reduced"])


def test_the_finding_says_the_share_and_the_source() -> None:
    limit = wire_limit.wire_limit([host_wires(name, nvlink=NVLINK_8, ports=8) for name in "abcd"])
    hardware = bandwidth.Hardware(H100, 32, 4, True)
    measured = [line(216.0, 16 * GIB)]
    (finding,) = bandwidth.judge_lines(measured, hardware, limit)
    assert "54% of what 8 x 400 Gb/s of a allow (400 GB/s)" in finding.message
    assert finding.message.endswith("and more (NVIDIA/nccl#812)")


@pytest.mark.parametrize("hosts", [2, 17, 128, 1000, 10000])
def test_any_number_of_hosts_is_judged_at_the_quick_size(hosts: int) -> None:
    limit = wire_limit.wire_limit([host_wires(nvlink=NVLINK_8, ports=8)] * hosts)
    hardware = bandwidth.Hardware(H100, 8 * hosts, hosts, True)
    measured = [line(14.0, 512 * MIB)]
    (finding,) = bandwidth.judge_lines(measured, hardware, limit)
    assert finding.id == "bandwidth-low"


def test_a_virtual_machine_may_hide_peer_access() -> None:
    host = host_wires(gpus=4, generation=4, device="NVIDIA L4")
    assert judged(7.0, [host], device="NVIDIA L4")[1] == ["bandwidth-low"]
    host.wires["virtual"] = True
    assert judged(7.0, [host], device="NVIDIA L4")[1] == ["bandwidth-reduced"]


def test_every_row_of_the_reference_has_its_source() -> None:
    reference = wire_limit.reference()
    rows = reference["kinds"].values()
    assert all(row["source"] for row in rows)
    assert all(0 < kind["fail"] < kind["warn"] < 1 for kind in reference["kinds"].values())


@pytest.mark.parametrize(
    ("cliques", "name"),
    [
        (("rack 1", "rack 1"), "the NVLinks between hosts"),
        (("rack 1", "rack 2"), "4 x 400 Gb/s of a"),
        ((None, None), "the network's ports (NVLink may join the 2 hosts)"),
    ],
)
def test_the_domain_of_nccls_log_decides_what_is_between_hosts(
    cliques: tuple[str | None, str | None], name: str
) -> None:
    device = "NVIDIA GB200"
    ranks: list[RankTransports] = []
    for host, clique in zip("ab", cliques):
        facts = host_wires(host, gpus=4, nvlink=nvlinks(4, 18, 53.125), ports=4).wires
        log = nccl_log.Transports(clique=clique)
        for gpu in range(4):
            rank = RankTransports(
                len(ranks), host, f"GPU-{gpu}", device, 10, log, facts, address=f"a{gpu}"
            )
            ranks.append(rank)
    limit = collectives._wire_limit(ranks)
    assert limit is not None
    assert limit.slowest.name == name
