"""The slowest wire that a ring over these ranks must cross, and so the most that busbw can be.

busbw is defined so that a ring reaches the rate of its slowest wire (NVIDIA/nccl-tests,
doc/PERFORMANCE.md). Healthy rings reach 0.75 and more of NVLink and of InfiniBand, and 0.55 and
more of PCIe; so less than half means that the traffic takes another path. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..facts.model import LinkFacts, WireFacts

MIB = 1 << 20
# The least share of the wire's rate that passes. Protocol takes 20 % of NVLink (NVIDIA/nccl#1054);
# PCIe through the host's memory reached 0.58 (gardenlinux/gardenlinux#4556).
LEAST_SHARE = 0.5
# One host's processors limit TCP above some 25 Gb/s.
LEAST_SHARE_TCP = 0.25
# With more hosts the shares of one message that cross a wire become smaller.
FROM_BYTES_PER_HOST = 256 * MIB
# A ring's bandwidth: these cross every wire of the ring equally.
RING_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
# Cards whose driver gives no rate that NVIDIA/nccl uses: the port of an EFA card represents several.
UNKNOWN_RATE_DRIVERS = ("efa",)
# GPUs whose driver allows no access to each other's memory: what they send goes through the host's
# memory, whose rate we do not know. NVIDIA/nccl-tests#117.
WITHOUT_PEER_ACCESS = ("GeForce",)


@dataclass(frozen=True)
class WireLimit:
    """gb_s: what the wire carries in one direction; least_share: what a healthy ring reaches."""

    wire: str
    gb_s: float
    least_share: float
    from_bytes: int

    @property
    def least_gb_s(self) -> float:
        return self.gb_s * self.least_share


@dataclass(frozen=True)
class HostWires:
    """One host's part of the ring: its name, the GPUs of its ranks (UUID and PCI address), and its
    wires. `interface`: the one that TCP would use."""

    host: str
    gpus: tuple[tuple[str, str], ...]
    wires: WireFacts
    interface: str = ""
    device: str = ""


def wire_limit(hosts: Sequence[HostWires]) -> WireLimit | None:
    """The slowest wire of a ring over all GPUs; None if the rate of one of its wires is unknown."""
    limits = []
    for host in hosts:
        if len(host.gpus) > 1:
            limits.append(_within_host(host, len(hosts)))
        if len(hosts) > 1:
            limits.append(_out_of_host(host, len(hosts)))
    rates = [limit for limit in limits if limit is not None]
    if not limits or len(rates) < len(limits):
        return None
    return min(rates, key=lambda limit: limit.least_gb_s)


def _within_host(host: HostWires, hosts: int) -> WireLimit | None:
    from_bytes = _from_bytes(hosts)
    rate = _nvlink_gb_s(host)
    if rate is not None:
        return WireLimit(f"NVLink of {host.host}", rate, LEAST_SHARE, from_bytes)
    if any(name in host.device for name in WITHOUT_PEER_ACCESS):
        return None
    return _pcie_limit(host, from_bytes)


def _nvlink_gb_s(host: HostWires) -> float | None:
    """What the slowest of these GPUs can send to the others over NVLink; None if a ring over
    NVLink alone is impossible."""
    uuids = [uuid for uuid, _ in host.gpus]
    rates: list[float] = []
    for uuid in uuids:
        gpu = host.wires["nvlink"].get(uuid)
        if gpu is None or not gpu["links_gb_s"]:
            return None
        links = gpu["links_gb_s"]
        to_peers = sum(count for peer, count in gpu["links_to"].items() if peer in uuids)
        # Through a switch every link leads to every GPU, so this counts links several times.
        usable = min(to_peers, len(links))
        if not usable:
            return None
        rates.append(sum(links) / len(links) * usable)
    if not _all_joined(uuids, host.wires["nvlink"]):
        return None
    return min(rates)


def _all_joined(uuids: Sequence[str], nvlink: Mapping[str, LinkFacts]) -> bool:
    """Whether NVLinks join all these GPUs: bridges join pairs only."""
    reached, pending = {uuids[0]}, [uuids[0]]
    while pending:
        for peer in nvlink[pending.pop()]["links_to"]:
            if peer in uuids and peer not in reached:
                reached.add(peer)
                pending.append(peer)
    return len(reached) == len(set(uuids))


def _pcie_limit(host: HostWires, from_bytes: int) -> WireLimit | None:
    by_address = {link["address"]: link for link in host.wires["pcie"]}
    addresses = [address for _, address in host.gpus]
    if not by_address.keys() >= set(addresses):
        return None
    slowest = min((by_address[address] for address in addresses), key=lambda link: link["gb_s"])
    name = (
        f"PCIe {slowest['generation']} x{slowest['lanes']} of the GPU at {slowest['address']}"
        f" of {host.host}"
    )
    return WireLimit(name, slowest["gb_s"], LEAST_SHARE, from_bytes)


def _out_of_host(host: HostWires, hosts: int) -> WireLimit | None:
    """A ring leaves a host through as many cards as it has GPUs there, or as there are cards."""
    from_bytes = _from_bytes(hosts)
    ports = host.wires["ports"]
    if any(port["driver"] in UNKNOWN_RATE_DRIVERS for port in ports):
        return None
    if ports:
        rates = sorted((port["gb_s"] for port in ports), reverse=True)[: len(host.gpus)]
        name = f"{len(rates)} RDMA port{'s' if len(rates) > 1 else ''} of {host.host}"
        network = WireLimit(name, sum(rates), LEAST_SHARE, from_bytes)
        pcie = _pcie_limit(host, from_bytes)
        if pcie is None or pcie.gb_s * len(host.gpus) >= network.gb_s:
            return network
        return replace(pcie, gb_s=pcie.gb_s * len(host.gpus))
    rate = host.wires["interfaces"].get(host.interface)
    if rate is None:
        return None
    return WireLimit(f"{host.interface} of {host.host}, by TCP", rate, LEAST_SHARE_TCP, from_bytes)


def _from_bytes(hosts: int) -> int:
    return FROM_BYTES_PER_HOST * max(hosts, 2)
