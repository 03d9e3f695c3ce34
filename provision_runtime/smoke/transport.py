"""The path of NCCL's data, and whether there is a better one. Pure.

NCCL chooses the transport in silence: without peer access it sends through the host's memory, and
without its RDMA plug-in through TCP, and everything still works. What each rank's log says
(facts.nccl_log) is compared with the wires of its host (facts.wires).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..checks.device_models import model_of
from ..dataclass import frozen
from ..facts.model import WireFacts
from ..facts.nccl_log import NET, P2P, SHM, SOCKET, Transports
from .outcome import Finding, merge_equal
from .wire_limit import GPU_INTERFACES, SLINGSHOT_INTERFACE, switches_in_common

INFINIBAND = "InfiniBand"
EFA = "efa"
GOOGLE = "Google Compute Engine"
# Instances whose EFA does not reach the GPU's memory: of P, those before p4d, and of G all but the
# larger g7e (aws/aws-ofi-nccl#547 and #1057).
EFA_WITHOUT_GPUDIRECT = ("p3dn.", "g4dn.", "g5.", "g6.", "g6e.", "gr6.", "g7e.8xlarge")
# Providers of libfabric that send by TCP or UDP (`tcp;ofi_rxm`).
TCP_PROVIDERS = ("tcp", "udp", "sockets")
# NVLink SHARP sums in the third generation of the switch, which Hopper brought (NVIDIA's H100
# white paper).
NVLS_MAJOR = 9
# NVLink SHARP needs as many GPUs of a host; of 8 GPUs NCCL uses it from 5 or 6 on
# (stas00/ml-engineering:network/README.md#sharp).
NVLS_RANKS = 8


@frozen
class RankTransports:
    """One rank: its host, GPU and log, and the wires of its host. `may_use_nvls`: whether NCCL's
    version and settings allow it. `address`: of the GPU on the PCI bus. `boot`: the kernel's boot,
    which the containers of one machine share. `interface`: the host's for TCP."""

    rank: int
    host: str
    uuid: str
    device: str
    major: int
    log: Transports
    wires: WireFacts
    may_use_nvls: bool = False
    address: str = ""
    boot: str = ""
    interface: str = ""


def findings(ranks: Sequence[RankTransports]) -> list[Finding]:
    """One finding for each id, about all ranks that it is true of, in the words of the first."""
    if not ranks:
        return []
    result = []
    log, machines = ranks[0].log, len({rank.boot or rank.host for rank in ranks})
    # NCCL takes ranks for ranks of one host by host name and boot, or by NCCL_HOSTID.
    if not log.mnnvl and log.ranks == len(ranks) and log.nodes != machines:
        message = f"NCCL counts {log.nodes} hosts (nNodes); there are {machines}"
        result.append(Finding("host-identity", message, tuple(range(len(ranks)))))
    is_one_domain = len({rank.log.clique for rank in ranks}) == 1
    by_rank = {rank.rank: rank for rank in ranks}
    for rank in ranks:
        on_host = [other for other in ranks if other.host == rank.host]
        if is_one_domain and log.clique and rank.log.mnnvl is False and len(on_host) < len(ranks):
            message = f"the GPUs of these hosts are in one NVLink domain ({log.clique}), which NCCL"
            result.append(Finding("mnnvl-absent", f"{message} does not use", (rank.rank,)))
        for peer, transport in rank.log.peers.items():
            if peer in by_rank and by_rank[peer].host != rank.host:
                result += _between_hosts(rank, transport, on_host)
            elif peer in by_rank:
                result += _within_host(rank, by_rank[peer], transport)
        if _without_gdr(rank):
            message = (
                "the network card does not reach the GPU's memory: data pass through the host's"
            )
            result.append(Finding("gdr-absent", message, (rank.rank,)))
        if _without_nvls(rank, on_host):
            message = "NCCL does not sum in the NVLink switch (NVLS), which these GPUs could"
            result.append(Finding("nvls-absent", message, (rank.rank,)))
    return list(merge_equal(result, by_id=True))


def _between_hosts(
    sender: RankTransports, transport: str, on_host: Sequence[RankTransports]
) -> Iterator[Finding]:
    """TCP between hosts that have a fabric."""
    # Google's FastSocket sends by TCP, too.
    is_tcp = transport.startswith((f"{NET}/{SOCKET}", f"{NET}/Fast{SOCKET}"))
    is_tcp |= any(name.startswith(TCP_PROVIDERS) for name in sender.log.plugins)
    fabric = _fabric(sender, on_host)
    if is_tcp and fabric:
        message = f"NCCL sends to other hosts by TCP, although {fabric} is up"
        yield Finding("transport-socket", message, (sender.rank,))


def _within_host(
    sender: RankTransports, receiver: RankTransports, transport: str
) -> Iterator[Finding]:
    """GPUs that NVLink joins, and that do not use it; GPUs at one PCIe switch that exchange data
    through the host's memory. Across the processor NCCL itself prefers that memory (p2pLevel is
    PATH_PXB, NVIDIA/nccl:src/graph/paths.cc)."""
    pair = (sender.rank, receiver.rank)
    example = f"as ranks {sender.rank} and {receiver.rank}: {transport}"
    gpu = sender.wires["nvlink"].get(sender.uuid)
    if gpu is not None and gpu["links_to"].get(receiver.uuid, 0) > 0:
        if not transport.startswith(P2P):
            message = f"GPUs with NVLink exchange data by another path, {example}"
            yield Finding("p2p-absent", message, pair)
    elif transport.startswith((SHM, NET)) and _at_one_switch(sender, receiver):
        message = f"GPUs of one host exchange data through its memory, {example}"
        yield Finding("p2p-through-host", message, pair)


def _fabric(rank: RankTransports, on_host: Sequence[RankTransports]) -> str:
    """What the host's fabric is; empty if it has none. An Ethernet card that could do RDMA is one
    only if there is one for each GPU. Slingshot shows no RDMA ports, only its interfaces."""
    ports, rates = rank.wires["ports"], list(rank.wires["interfaces"].values())
    if rank.wires.get("instance") == GOOGLE and any(
        rates.count(r) >= GPU_INTERFACES for r in rates
    ):
        return "Google's network for GPUs (GPUDirect-TCPX)"
    if any(name.startswith(SLINGSHOT_INTERFACE) for name in rank.wires["interfaces"]):
        return "Slingshot"
    if any(port["driver"] == EFA for port in ports):
        return "EFA"
    if any(port["link_layer"] == INFINIBAND for port in ports):
        return INFINIBAND
    if len(ports) > 1 and len(ports) >= len(on_host):
        return "RoCE"
    return ""


def _at_one_switch(sender: RankTransports, receiver: RankTransports) -> bool:
    """Whether a PCIe switch joins GPUs whose driver allows access to each other's memory. Below
    one port of the processor there is a second GPU only if there is a switch."""
    if model_of(sender.device).get("peer_access") is False:
        return False
    paths = {link["address"]: link.get("path", "") for link in sender.wires["pcie"]}
    ends = [paths.get(rank.address, "") for rank in (sender, receiver)]
    return switches_in_common(*ends) > 0


def _without_gdr(rank: RankTransports) -> bool:
    """Not where NVLink joins GPU and processor: there NCCL prefers the host's memory
    (NVIDIA/nccl#1579). Nor where the cloud's adapter cannot."""
    instance = rank.wires.get("instance", "")
    if model_of(rank.device).get("c2c") or instance.startswith(EFA_WITHOUT_GPUDIRECT):
        return False
    networks = [name for name in rank.log.peers.values() if name.startswith(NET)]
    return rank.log.gdrdma is False and any(SOCKET not in name for name in networks)


def _without_nvls(rank: RankTransports, on_host: Sequence[RankTransports]) -> bool:
    """Through a switch, all links of a GPU lead to every other one."""
    if rank.major < NVLS_MAJOR or len(on_host) < NVLS_RANKS or not rank.may_use_nvls:
        return False
    gpu = rank.wires["nvlink"].get(rank.uuid)
    if gpu is None or not gpu["links_to"]:
        return False
    is_unused = rank.log.nvls_supported is False or rank.log.nvls_channels == 0
    return is_unused and set(gpu["links_to"].values()) == {len(gpu["links_gb_s"])}
