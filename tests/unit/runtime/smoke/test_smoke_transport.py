"""The transport that NCCL chose is compared with the wires that are there."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.facts import nccl_log
from provision_runtime.report.codec import decode
from provision_runtime.smoke import nccl_variables, transport

H100 = "NVIDIA H100 80GB HBM3"
IB_PORT = {"name": "mlx5_0", "port": 1, "gb_s": 50.0, "link_layer": "InfiniBand", "driver": "mlx5"}
ETHERNET_PORT = {**IB_PORT, "link_layer": "Ethernet"}


def wires(gpus: int, links: int = 18, ports: list[dict[str, Any]] | None = None) -> Any:
    names = [f"GPU-{number}" for number in range(gpus)]
    nvlink = {}
    for name in names:
        links_to = {peer: links for peer in names if peer != name and links}
        nvlink[name] = {"links_gb_s": [26.562] * links, "links_to": links_to}
    pcie = [{"address": name, "path": f"pci0000:00/switch/{name}"} for name in names]
    return {"nvlink": nvlink, "pcie": pcie, "ports": ports or [], "interfaces": {}}


def rank(
    number: int,
    peers: dict[int, str],
    host_wires: Any,
    host: str = "n1",
    gpu: int | None = None,
    device: str = H100,
    **log: Any,
) -> transport.RankTransports:
    sent = json.loads(json.dumps(asdict(nccl_log.Transports(peers=peers, **log))))
    log_of_rank = decode(nccl_log.Transports, json.loads(json.dumps(sent)), "log")
    uuid = f"GPU-{number if gpu is None else gpu}"
    return transport.RankTransports(
        number, host, uuid, device, 9, log_of_rank, host_wires, True, address=uuid
    )


def ids(ranks: list[transport.RankTransports]) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.id, finding.ranks) for finding in transport.findings(ranks)]


def two_hosts(name: str, ports: list[dict[str, Any]], **log: Any) -> list[transport.RankTransports]:
    first = rank(0, {1: name}, wires(1, 0, ports), "n1", 0, **log)
    second = rank(1, {0: name}, wires(1, 0, ports), "n2", 0, **log)
    return [first, second]


def test_tcp_beside_infiniband_fails() -> None:
    assert ids(two_hosts("NET/Socket/0", [IB_PORT])) == [("transport-socket", (0, 1))]


@pytest.mark.parametrize(
    ("provider", "found"),
    [("efa, fabric is efa", []), ("tcp;ofi_rxm, fabric", ["transport-socket"])],
)
def test_a_plugin_that_sends_by_tcp(provider: str, found: list[str]) -> None:
    line = f"n1:1:1 [0] NCCL INFO NET/OFI Selected provider is {provider} (found 4 nics)"
    plugins = nccl_log.parse([line], 0).plugins
    hosts = two_hosts("NET/AWS Libfabric/0", [{**IB_PORT, "driver": "efa"}], plugins=plugins)
    assert [id for id, _ in ids(hosts)] == found


@pytest.mark.parametrize(
    ("network", "line", "found"),
    [
        # determined-ai/environments#169: Slingshot without the plug-in falls back to TCP.
        ("Socket", "NCCL INFO NET/Socket : Using [0]hsn0:10.1.0.1<0>", ["transport-socket"]),
        ("AWS Libfabric", "NCCL INFO NET/OFI Selected Provider is cxi", []),
        ("OFI", "NCCL INFO NET/OFI Selected provider is tcp, fabric is", ["transport-socket"]),
    ],
)
def test_slingshot_has_no_ports_but_is_a_fabric(network: str, line: str, found: list[str]) -> None:
    plugins = nccl_log.parse([line], 0).plugins
    hosts = two_hosts(f"NET/{network}/0", [], plugins=plugins)
    for host in hosts:
        host.wires["interfaces"] = {"hsn0": 25.0, "hsn1": 25.0}
    assert [id for id, _ in ids(hosts)] == found


@pytest.mark.parametrize(
    ("network", "instance", "interfaces", "found"),
    [
        # a3-megagpu without its plugin: 23.7 GB/s instead of 318, and no error.
        ("Socket", transport.GOOGLE, 9, ["transport-socket"]),
        ("FastSocket", transport.GOOGLE, 9, ["transport-socket"]),
        ("FasTrak", transport.GOOGLE, 9, []),
        ("GPUDirectTCPX_v7", transport.GOOGLE, 5, []),
        ("Socket", transport.GOOGLE, 1, []),
        ("Socket", "", 9, []),
    ],
)
def test_googles_network_for_gpus_has_only_interfaces(
    network: str, instance: str, interfaces: int, found: list[str]
) -> None:
    hosts = two_hosts(f"NET/{network}/0", [])
    for host in hosts:
        host.wires["interfaces"] = {f"eth{number}": 25.0 for number in range(interfaces)}
        host.wires["instance"] = instance
    assert [id for id, _ in ids(hosts)] == found


@pytest.mark.parametrize(
    ("instance", "found"),
    [
        ("g5.12xlarge", []),
        ("g6e.48xlarge", []),
        ("p5.48xlarge", ["gdr-absent"]),
        ("g7e.48xlarge", ["gdr-absent"]),
        ("", ["gdr-absent"]),
    ],
)
def test_efa_of_some_instances_reaches_no_gpu(instance: str, found: list[str]) -> None:
    hosts = two_hosts("NET/Libfabric/0", [{**IB_PORT, "driver": "efa"}], gdrdma=False)
    for host in hosts:
        host.wires["instance"] = instance
    assert [id for id, _ in ids(hosts)] == found


def test_tcp_without_a_fabric_is_fine() -> None:
    assert ids(two_hosts("NET/Socket/0", [])) == []


def test_one_ethernet_card_is_no_fabric_but_a_rail_for_each_gpu_is() -> None:
    both = wires(2, 0, [ETHERNET_PORT])
    ranks = [rank(0, {2: "NET/Socket/0"}, both, gpu=0), rank(1, {}, both, gpu=1)]
    ranks += [rank(2, {}, both, "n2", 0), rank(3, {}, both, "n2", 1)]
    assert ids(ranks) == []
    rails = [replace(each, wires=wires(2, 0, [ETHERNET_PORT] * 2)) for each in ranks]
    assert ids(rails) == [("transport-socket", (0,))]


def test_infiniband_without_gpudirect_warns() -> None:
    assert ids(two_hosts("NET/IB/0", [IB_PORT], gdrdma=False)) == [("gdr-absent", (0, 1))]
    assert ids(two_hosts("NET/IB/0", [IB_PORT], gdrdma=True)) == []
    # Grace's memory is as near as the GPU's, and NCCL prefers it.
    for device in ("NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB10"):
        ranks = two_hosts("NET/IB/0", [IB_PORT], gdrdma=False)
        assert ids([replace(each, device=device) for each in ranks]) == []


@pytest.mark.parametrize("name", ["SHM/direct/direct", "NET/Socket/0"])
def test_nvlink_that_is_not_used_fails(name: str) -> None:
    ranks = [rank(0, {1: name}, wires(2)), rank(1, {0: "P2P/CUMEM"}, wires(2))]
    assert ids(ranks) == [("p2p-absent", (0, 1))]


def test_pcie_through_the_host_warns_unless_the_driver_allows_no_other_way() -> None:
    without_nvlink = wires(2, 0)
    ranks = [rank(0, {1: "SHM/direct/direct"}, without_nvlink), rank(1, {}, without_nvlink)]
    assert ids(ranks) == [("p2p-through-host", (0, 1))]
    assert ids([replace(each, device="NVIDIA GeForce RTX 4090") for each in ranks]) == []
    # GPUs of two sockets: NCCL itself prefers the host's memory.
    without_nvlink["pcie"][1]["path"] = "pci0000:80/port/GPU-1"
    assert ids(ranks) == []


@pytest.mark.parametrize(
    "log", [{"nvls_channels": 0}, {"nvls_supported": False}], ids=["no channels", "no multicast"]
)
def test_a_switch_that_does_not_sum_warns(log: dict[str, Any]) -> None:
    host_wires = wires(8)
    ranks = [rank(number, {}, host_wires, **log) for number in range(8)]
    assert ids(ranks) == [("nvls-absent", tuple(range(8)))]
    assert ids(ranks[:4]) == []
    assert ids([replace(each, major=8) for each in ranks]) == []
    assert ids([replace(each, may_use_nvls=False) for each in ranks]) == []


@pytest.mark.parametrize(
    ("boots", "nodes", "mnnvl", "finding_ids"),
    [
        ("aabb", 2, False, []),
        # Containers with host names of their own, or each with its own NCCL_HOSTID.
        ("aaaa", 4, False, ["host-identity"]),
        # One NCCL_HOSTID on two machines.
        ("aabb", 1, False, ["host-identity"]),
        ("aabb", 1, True, []),
    ],
)
def test_hosts_as_nccl_counts_them(
    boots: str, nodes: int, mnnvl: bool, finding_ids: list[str]
) -> None:
    host = wires(4)
    ranks = [rank(number, {}, host, ranks=4, nodes=nodes, mnnvl=mnnvl) for number in range(4)]
    ranks = [replace(each, boot=boot) for each, boot in zip(ranks, boots)]
    assert [finding.id for finding in transport.findings(ranks)] == finding_ids


def test_multi_node_nvlink_that_is_not_used_fails() -> None:
    first, second = two_hosts("NET/IB/0", [IB_PORT], clique="1.2 cliqueId 0x1", mnnvl=False)
    assert ids([first, second]) == [("mnnvl-absent", (0, 1))]
    other = replace(second, log=replace(second.log, clique="1.2 cliqueId 0x2"))
    assert ids([first, other]) == []
    used = [replace(each, log=replace(each.log, mnnvl=True)) for each in (first, second)]
    assert ids(used) == []


def test_a_log_that_says_nothing_is_no_finding() -> None:
    assert ids([rank(number, {}, wires(8)) for number in range(8)]) == []


def test_our_variables_depend_on_the_release() -> None:
    older = nccl_variables.for_run("1.13.1+cu117", {}, Path("log"))
    assert older["NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in older
    newer = nccl_variables.for_run("2.10.0+cu128", {}, Path("log"))
    assert newer["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert newer["TORCH_NCCL_ENABLE_MONITORING"] == "0"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"NCCL_DEBUG_FILE": "log", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET,TUNING"}),
        ({"NCCL_DEBUG": "TRACE"}, {"NCCL_DEBUG_FILE": "log", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET,TUNING"}),
        (
            {"NCCL_DEBUG": "warn", "NCCL_DEBUG_SUBSYS": "ALL"},
            {"NCCL_DEBUG_FILE": "log", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"},
        ),
        ({"NCCL_DEBUG_FILE": "/own/%p"}, {}),
    ],
)  # fmt: skip
def test_a_users_log_stays_theirs(environment: dict[str, str], expected: dict[str, str]) -> None:
    variables = nccl_variables.for_run("2.3.1", environment, Path("log"))
    assert {
        name: value for name, value in variables.items() if name.startswith("NCCL_DEBUG")
    } == expected
