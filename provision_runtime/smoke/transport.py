"""The path of NCCL's data, and whether there is a better one. Pure.

NCCL chooses the transport in silence: without peer access it sends through the host's memory, and
without its RDMA plug-in through TCP, and everything still works. What each rank's log says
(facts.nccl_log) is compared with the wires of its host (facts.wires).
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """One finding for each id, about all ranks that it is true of."""
    if not ranks:
        return []
    direct = "the network card does not reach the GPU's memory: data pass through the host's"
    in_switch = "NCCL does not sum in the NVLink switch (NVLS), which these GPUs could"
    result = [
        *_hosts(ranks),
        *_multi_node_nvlink(ranks),
        *_socket(ranks),
        *_peer_access(ranks),
        *(Finding("gdr-absent", direct, (rank.rank,)) for rank in ranks if _without_gdr(rank)),
        *(
            Finding("nvls-absent", in_switch, (rank.rank,))
            for rank in ranks
            if _without_nvls(rank, ranks)
        ),
    ]
    return list(merge_equal(result))


def _peers(ranks: Sequence[RankTransports]) -> list[tuple[RankTransports, RankTransports, str]]:
    """Sender, receiver and transport of each connection between two ranks."""
    by_rank = {rank.rank: rank for rank in ranks}
    connections = []
    for rank in ranks:
        for peer, transport in rank.log.peers.items():
            if peer in by_rank:
                connections.append((rank, by_rank[peer], transport))
    return connections


def _hosts(ranks: Sequence[RankTransports]) -> list[Finding]:
    """NCCL takes ranks for ranks of one host by host name and boot, or by NCCL_HOSTID."""
    log = ranks[0].log
    machines = len({rank.boot or rank.host for rank in ranks})
    if log.mnnvl or log.ranks != len(ranks) or log.nodes == machines:
        return []
    message = f"NCCL counts {log.nodes} hosts (nNodes); there are {machines}"
    return [Finding("host-identity", message, tuple(range(len(ranks))))]


def _multi_node_nvlink(ranks: Sequence[RankTransports]) -> list[Finding]:
    """Hosts whose GPUs are of one NVLink domain, and that do not use it."""
    cliques = {rank.log.clique for rank in ranks}
    affected = tuple(rank.rank for rank in ranks if rank.log.mnnvl is False)
    if len({rank.host for rank in ranks}) < 2 or len(cliques) > 1 or not affected:
        return []
    clique = cliques.pop()
    message = (
        f"the GPUs of these hosts are in one NVLink domain ({clique}), which NCCL does not use"
    )
    return [Finding("mnnvl-absent", message, affected)] if clique else []


def _socket(ranks: Sequence[RankTransports]) -> list[Finding]:
    """TCP between hosts that have a fabric."""
    affected: dict[int, str] = {}
    for sender, receiver, transport in _peers(ranks):
        # Google's FastSocket sends by TCP, too.
        is_tcp = transport.startswith((f"{NET}/{SOCKET}", f"{NET}/Fast{SOCKET}"))
        is_tcp |= any(name.startswith(TCP_PROVIDERS) for name in sender.log.plugins)
        if sender.host != receiver.host and is_tcp:
            fabric = _fabric(sender, [rank for rank in ranks if rank.host == sender.host])
            if fabric:
                affected[sender.rank] = fabric
    if not affected:
        return []
    fabrics = " and ".join(sorted(set(affected.values())))
    message = f"NCCL sends to other hosts by TCP, although {fabrics} is up"
    return [Finding("transport-socket", message, tuple(affected))]


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


def _peer_access(ranks: Sequence[RankTransports]) -> list[Finding]:
    """GPUs that NVLink joins, and that do not use it; GPUs at one PCIe switch that exchange data
    through the host's memory. Across the processor NCCL itself prefers that memory (p2pLevel is
    PATH_PXB, NVIDIA/nccl:src/graph/paths.cc)."""
    off_nvlink, through_host = [], []
    for sender, receiver, transport in _peers(ranks):
        pair = (sender.rank, receiver.rank, transport)
        if sender.host != receiver.host:
            continue
        gpu = sender.wires["nvlink"].get(sender.uuid)
        if gpu is not None and gpu["links_to"].get(receiver.uuid, 0) > 0:
            if not transport.startswith(P2P):
                off_nvlink.append(pair)
        elif transport.startswith((SHM, NET)) and _at_one_switch(sender, receiver):
            through_host.append(pair)
    return [
        *_pairs_finding("p2p-absent", "GPUs with NVLink exchange data by another path", off_nvlink),
        *_pairs_finding(
            "p2p-through-host", "GPUs of one host exchange data through its memory", through_host
        ),
    ]


def _at_one_switch(sender: RankTransports, receiver: RankTransports) -> bool:
    """Whether a PCIe switch joins GPUs whose driver allows access to each other's memory. Below
    one port of the processor there is a second GPU only if there is a switch."""
    if model_of(sender.device).get("peer_access") is False:
        return False
    paths = {link["address"]: link.get("path", "") for link in sender.wires["pcie"]}
    ends = [paths.get(rank.address, "") for rank in (sender, receiver)]
    return switches_in_common(*ends) > 0


def _pairs_finding(
    finding_id: str, problem: str, pairs: Sequence[tuple[int, int, str]]
) -> list[Finding]:
    """pairs: two ranks, and the transport between them; the message names the first."""
    if not pairs:
        return []
    first, second, transport = pairs[0]
    ranks = {rank for sender, receiver, _ in pairs for rank in (sender, receiver)}
    message = f"{problem}, as ranks {first} and {second}: {transport}"
    return [Finding(finding_id, message, tuple(sorted(ranks)))]


def _without_gdr(rank: RankTransports) -> bool:
    """Not where NVLink joins GPU and processor: there NCCL prefers the host's memory
    (NVIDIA/nccl#1579). Nor where the cloud's adapter cannot."""
    instance = rank.wires.get("instance", "")
    if model_of(rank.device).get("c2c") or instance.startswith(EFA_WITHOUT_GPUDIRECT):
        return False
    networks = [name for name in rank.log.peers.values() if name.startswith(NET)]
    return rank.log.gdrdma is False and any(SOCKET not in name for name in networks)


def _without_nvls(rank: RankTransports, ranks: Sequence[RankTransports]) -> bool:
    local_ranks = [other for other in ranks if other.host == rank.host]
    can_sum = rank.major >= NVLS_MAJOR and len(local_ranks) >= NVLS_RANKS and rank.may_use_nvls
    is_unused = rank.log.nvls_supported is False or rank.log.nvls_channels == 0
    return can_sum and is_unused and _at_switch(rank)


def _at_switch(rank: RankTransports) -> bool:
    """Through a switch, all links of a GPU lead to every other one."""
    gpu = rank.wires["nvlink"].get(rank.uuid)
    if gpu is None or not gpu["links_to"]:
        return False
    links = len(gpu["links_gb_s"])
    return all(count == links for count in gpu["links_to"].values())
