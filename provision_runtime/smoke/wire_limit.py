"""The wire that limits a ring over these ranks, and so the most that busbw can be.

busbw is defined so that a ring reaches the rate of its slowest wire (NVIDIA/nccl-tests,
doc/PERFORMANCE.md). How much of it healthy machines reach depends on the kind of wire:
wire_reference.json has these shares, and what clouds carry, each with its source.
Below `fail` the traffic takes another path, below `warn` something slows it. Pure, except for
reading that file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..checks.device_models import model_of
from ..dataclass import frozen
from ..facts.model import PortFacts, WireFacts
from ..report.codec import packaged_json
from .outcome import grouped

EFA = "efa"
# How HPE names Slingshot's interfaces and its driver (cxi_ss1).
SLINGSHOT, SLINGSHOT_INTERFACE, SLINGSHOT_DRIVER = "slingshot", "hsn", "cxi"
# With so many equal interfaces all but one belong to the GPUs: a3-highgpu of Google has four and
# one more, a3-megagpu eight (https://cloud.google.com/compute/docs/gpus/gpudirect).
GPU_INTERFACES = 5
DEFAULT_LANES = 16
# With one port fewer than GPUs, one is down; but two GPUs often share one port.
FEWEST_RAILS = 3


def reference() -> Any:
    return packaged_json(__package__, "wire_reference.json")


def share_at(gb_s: float, size_bytes: float, hosts: int = 1) -> float:
    """How much of a rate a message of this size shows. It pays the latency of the ring or tree, which
    grows with the logarithm of the hosts, once."""
    latency_s: float = reference()["latency_s"] * math.log2(2 * hosts)
    return 1 / (1 + latency_s * gb_s * 1e9 / size_bytes)


@frozen
class Wire:
    """gb_s: what the wire carries in one direction, 0 if it is unknown. intact_gb_s: what it would carry with all lanes
    and ports that such machines have. hosts: how many the ring spans."""

    name: str
    kind: str
    gb_s: float
    intact_gb_s: float = 0.0
    hosts: int = 1

    def least_gb_s(self, bound: str, size_bytes: float = math.inf) -> float:
        """The least busbw for a message of this size. bound: `fail`, of what the wire carries, or
        `warn`, of what it would carry intact."""
        gb_s = self.gb_s if bound == "fail" else max(self.gb_s, self.intact_gb_s)
        share = reference()["kinds"][self.kind][bound] * share_at(gb_s, size_bytes, self.hosts)
        return float(share * gb_s)


@frozen
class WireLimit:
    """slowest: by which a run fails; warning: by which one is warned of."""

    slowest: Wire
    warning: Wire


@frozen
class HostWires:
    """One host's part of the ring: its name, the GPUs of its ranks (UUID and PCI address), and its
    wires. `interface`: the one that TCP would use. `clique`: the multi-node NVLink domain of its
    GPUs, empty if it is unknown."""

    host: str
    gpus: tuple[tuple[str, str], ...]
    wires: WireFacts
    interface: str = ""
    device: str = ""
    clique: str = ""


def wire_limit(hosts: Sequence[HostWires]) -> WireLimit | None:
    """The limit of a ring over all GPUs; None if the rate of one of its wires is unknown."""
    count, ranks = len(hosts), sum(len(host.gpus) for host in hosts)
    facts = model_of(hosts[0].device)
    wires = [_network(host) for host in hosts if count > 1]
    # The host with the most ports shows what the others should have.
    fastest = max((wire.intact_gb_s for wire in wires), default=0.0)
    wires = [replace(wire, intact_gb_s=fastest) for wire in wires]
    cliques = {host.clique for host in hosts}
    if count > 1 and len(cliques) == 1 and ranks <= facts.get("multi_node", 0):
        # GPUs of one NVLink domain; if the domain is unknown, they may be of one.
        nvlink_gb_s = facts.get("nvlinks", 0) * facts.get("nvlink_gb_s", 0.0)
        wires = [Wire("the NVLinks between hosts", "nvlink", nvlink_gb_s)]
        if cliques == {""}:
            name = f"the network's ports (NVLink may join the {count} hosts)"
            wires = [Wire(name, "multi-node", fastest, nvlink_gb_s)]
    wires += [_within_host(host) for host in hosts if len(host.gpus) > 1]
    if not wires or not all(wire.gb_s for wire in wires):
        return None
    wires = [replace(wire, hosts=count) for wire in wires]
    slowest = min(wires, key=lambda wire: wire.least_gb_s("fail"))
    # A port that is not up is worth a warning, whatever else the ring crosses.
    warning = min(
        wires, key=lambda wire: (wire.kind != "rails", wire.least_gb_s("warn"), wire.gb_s)
    )
    return WireLimit(slowest, warning)


def _within_host(host: HostWires) -> Wire:
    facts = model_of(host.device)
    peer_access = facts.get("peer_access", True)
    gb_s = _nvlink_gb_s(host)
    if not gb_s:
        kind = "pcie" if peer_access else "host"
        # A hypervisor may hide that GPUs reach one another, and then nothing is broken.
        if host.wires.get("virtual", False):
            kind = "virtual"
        return _pcie_limit(host, kind)
    name, kind = f"the NVLinks of {host.host}", "nvlink"
    if facts.get("bridge") or not peer_access:
        kind = "bridge"
    links = min((host.wires["nvlink"][uuid]["links_gb_s"] for uuid, _ in host.gpus), key=len)
    count = facts.get("nvlinks", 0)
    if sum(links) <= gb_s and len(links) < count:
        inactive = count - len(links)
        name = f"the {count} NVLinks per GPU of {host.host}, of which {inactive} are inactive,"
        gb_s = count * facts.get("nvlink_gb_s", 0.0)
    return Wire(name, kind, gb_s)


def _nvlink_gb_s(host: HostWires) -> float:
    """What the slowest of these GPUs can send to the others over NVLink; 0 if a ring over NVLink
    alone is impossible."""
    uuids = [uuid for uuid, _ in host.gpus]
    gpus = [host.wires["nvlink"].get(uuid) for uuid in uuids]
    rates = []
    for gpu in gpus:
        if gpu is None or not gpu["links_gb_s"]:
            return 0.0
        links = gpu["links_gb_s"]
        to_peers = sum(count for peer, count in gpu["links_to"].items() if peer in uuids)
        # Through a switch every link leads to every GPU, so this counts links several times.
        usable = min(to_peers, len(links))
        rates.append(sum(links) / len(links) * usable)
    # Bridges join pairs only.
    reached = {uuids[0]}
    for _ in uuids:
        reached |= {peer for uuid in reached for peer in host.wires["nvlink"][uuid]["links_to"]}
        reached &= set(uuids)
    return min(rates) if len(reached) == len(uuids) else 0.0


def _pcie_limit(host: HostWires, kind: str) -> Wire:
    by_address = {link["address"]: link for link in host.wires["pcie"]}
    addresses = [address for _, address in host.gpus]
    if not by_address.keys() >= set(addresses):
        return Wire("", kind, 0.0)
    slowest = min((by_address[address] for address in addresses), key=lambda link: link["gb_s"])
    lanes, card_lanes = slowest["lanes"], slowest.get("card_lanes", DEFAULT_LANES)
    all_lanes = f"(of x{card_lanes}) " if lanes < card_lanes else ""
    name = f"the PCIe {slowest['generation']} x{lanes} lanes {all_lanes}of the GPU at "
    name += f"{slowest['address']} of {host.host}"
    return Wire(name, kind, slowest["gb_s"], slowest["gb_s"] * max(card_lanes / lanes, 1))


def _network(host: HostWires) -> Wire:
    """The way out of a host: its adapters that belong to these GPUs, and their PCIe."""
    facts, gpus = model_of(host.device), len(host.gpus)
    count, gb_s, kind = _adapters(host)
    name = f"{count} x {gb_s * 8:g} Gb/s of {host.host}"
    intact = count
    if kind == "rdma" and count == gpus - 1 and gpus >= FEWEST_RAILS:
        kind, intact = "rails", gpus
        name += f", {gpus} GPUs,"
    rate_limits = (facts.get("network_gb_s"), reference()["kinds"][kind].get("most_gb_s"))
    most = min(filter(None, rate_limits), default=math.inf)
    wire = Wire(name, kind, min(count * gb_s, most), min(intact * gb_s, most))
    pcie = _pcie_limit(host, kind)
    if facts.get("c2c") or not 0 < pcie.gb_s * gpus < wire.gb_s:
        return wire
    return replace(wire, name=pcie.name, gb_s=pcie.gb_s * gpus)


def _adapters(host: HostWires) -> tuple[int, float, str]:
    """The adapters of these GPUs: how many, GB/s of each (0 if it is unknown), and their kind."""
    ports, interfaces = host.wires["ports"], host.wires["interfaces"]
    slingshot = [gb_s for name, gb_s in interfaces.items() if name.startswith(SLINGSHOT_INTERFACE)]
    efa = [port["gb_s"] for port in ports if port["driver"] == EFA]
    if efa:
        instance_gb_s = reference()["instances"].get(host.wires.get("instance", ""), sum(efa))
        return _share(len(efa), host), instance_gb_s / len(efa), EFA
    if ports:
        ports = ports_of_gpus(host)
        kind = SLINGSHOT if ports[0]["driver"].startswith(SLINGSHOT_DRIVER) else "rdma"
        return len(ports), ports[0]["gb_s"], kind
    if slingshot:
        return _share(len(slingshot), host), min(slingshot), SLINGSHOT
    rate = interfaces.get(host.interface, 0.0)
    equal = list(interfaces.values()).count(rate)
    if equal >= GPU_INTERFACES:
        return _share(equal - 1, host), rate, "gpudirect-tcp"
    return 1, rate, "tcp"


def _share(count: int, host: HostWires) -> int:
    """How many of the host's adapters belong to the GPUs of these ranks."""
    gpus = max(len(host.wires["pcie"]), len(host.gpus))
    # The rest serves storage or administration.
    count -= count % gpus if count > gpus else 0
    return math.ceil(count * len(host.gpus) / gpus)


def ports_of_gpus(host: HostWires) -> list[PortFacts]:
    """The ports that these GPUs use, as NCCL chooses them: those at the same PCIe switch. Where
    the kernel shows no common switch (virtual machines, processors with NVLink-C2C), as many as
    belong to so many GPUs of the host. Ports of another rate or kind serve other purposes."""
    classes = grouped(
        ((port.get("link_layer"), port["gb_s"]), port) for port in host.wires["ports"]
    )
    ports = max(classes.values(), key=lambda group: sum(port["gb_s"] for port in group))
    paths = {link["address"]: link.get("path", "") for link in host.wires["pcie"]}
    near: set[int] = set()
    for _, address in host.gpus:
        path = paths.get(address, "")
        distances = [switches_in_common(path, port.get("path", "")) for port in ports]
        nearest = max(distances)
        if not nearest:
            return ports[: _share(len(ports), host)]
        near |= {index for index, common in enumerate(distances) if common == nearest}
    return [ports[index] for index in sorted(near)]


def switches_in_common(gpu: str, other: str) -> int:
    """How many ports and switches of PCIe lead to both cards; 0 if only the processor does, or if
    it is unknown. gpu, other: the cards' folders below /sys/devices, empty if they are unknown."""
    # The first folder is the root complex.
    return os.path.commonpath([gpu, other]).count("/")
