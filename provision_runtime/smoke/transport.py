"""The path of NCCL's data, and whether there is a better one. Pure.

NCCL chooses the transport in silence: without peer access it sends through the host's memory, and
without its RDMA plug-in through TCP, and everything still works. What each rank's log says
(facts.nccl_log) is compared with the wires of its host (facts.wires).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..facts.nccl_log import NET, P2P, SHM, SOCKET
from .outcome import Finding
from .wire_limit import WITHOUT_PEER_ACCESS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INFINIBAND = "InfiniBand"
EFA = "efa"
# NVLink SHARP sums in the third generation of the switch, which Hopper brought (NVIDIA's H100
# white paper); of 8 GPUs NCCL uses it from 5 or 6 on (stas00/ml-engineering:network/README.md#sharp).
NVLS_MAJOR = 9
NVLS_RANKS = 8


@dataclass(frozen=True)
class RankTransports:
    """One rank: its host, GPU and log, and the wires of its host. `may_use_nvls`: whether NCCL's
    version and settings allow it."""

    rank: int
    host: str
    uuid: str
    device: str
    major: int
    log: Mapping[str, Any]
    wires: Mapping[str, Any]
    may_use_nvls: bool = False


def findings(ranks: Sequence[RankTransports]) -> tuple[Finding, ...]:
    """One finding for each id, about all ranks that it is true of."""
    result = []
    for judge in (_socket, _peer_access, _through_host, _gpudirect, _nvls):
        finding = judge(ranks)
        if finding is not None:
            result.append(finding)
    return tuple(result)


def summary(ranks: Sequence[RankTransports]) -> dict[str, Any]:
    """For the report: what all ranks agree on, and the log of each."""
    return {
        "network": _common([rank.log["network"] for rank in ranks]),
        "gdrdma": _common([rank.log["gdrdma"] for rank in ranks]),
        "nvls_channels": _common([rank.log["nvls_channels"] for rank in ranks]),
        "plugins": sorted({name for rank in ranks for name in rank.log["plugins"]}),
        "ranks": [{"rank": rank.rank, **rank.log} for rank in ranks],
    }


def _common(values: Sequence[Any]) -> Any:
    """The value if all ranks have the same, else the list of all."""
    if all(value == values[0] for value in values):
        return values[0]
    return list(values)


def _peers(ranks: Sequence[RankTransports]) -> list[tuple[RankTransports, RankTransports, str]]:
    """Sender, receiver and transport of each connection between two ranks."""
    by_rank = {rank.rank: rank for rank in ranks}
    connections = []
    for rank in ranks:
        for peer, transport in rank.log["peers"].items():
            if int(peer) in by_rank:
                connections.append((rank, by_rank[int(peer)], transport))
    return connections


def _socket(ranks: Sequence[RankTransports]) -> Finding | None:
    """TCP between hosts that have a fabric."""
    affected: dict[int, str] = {}
    for sender, receiver, transport in _peers(ranks):
        if sender.host == receiver.host or not transport.startswith(f"{NET}/{SOCKET}"):
            continue
        fabric = _fabric(sender, [rank for rank in ranks if rank.host == sender.host])
        if fabric:
            affected[sender.rank] = fabric
    if not affected:
        return None
    fabrics = " and ".join(sorted(set(affected.values())))
    message = f"NCCL sends to other hosts by TCP (NET/Socket), although {fabrics} is up"
    return Finding("transport-socket", message, tuple(affected))


def _fabric(rank: RankTransports, on_host: Sequence[RankTransports]) -> str:
    """What the host's RDMA ports are; empty if they are no fabric. An Ethernet card that could do
    RDMA is one only if there is one for each GPU."""
    ports = rank.wires["ports"]
    if any(port["driver"] == EFA for port in ports):
        return "EFA"
    if any(port["link_layer"] == INFINIBAND for port in ports):
        return INFINIBAND
    if len(ports) > 1 and len(ports) >= len(on_host):
        return "RoCE"
    return ""


def _peer_access(ranks: Sequence[RankTransports]) -> Finding | None:
    """GPUs that NVLink joins, and that do not use it."""
    pairs = []
    for sender, receiver, transport in _peers(ranks):
        if not _joined_by_nvlink(sender, receiver) or transport.startswith(P2P):
            continue
        pairs.append((sender.rank, receiver.rank, transport))
    return _pairs_finding("p2p-absent", "GPUs with NVLink exchange data by another path", pairs)


def _through_host(ranks: Sequence[RankTransports]) -> Finding | None:
    """GPUs on PCIe that exchange data through the host's memory."""
    pairs = []
    for sender, receiver, transport in _peers(ranks):
        if sender.host != receiver.host or _joined_by_nvlink(sender, receiver):
            continue
        if any(name in sender.device for name in WITHOUT_PEER_ACCESS):
            continue
        if transport.startswith((SHM, NET)):
            pairs.append((sender.rank, receiver.rank, transport))
    problem = "GPUs of one host exchange data through its memory"
    return _pairs_finding("p2p-through-host", problem, pairs)


def _joined_by_nvlink(sender: RankTransports, receiver: RankTransports) -> bool:
    if sender.host != receiver.host:
        return False
    gpu = sender.wires["nvlink"].get(sender.uuid)
    return gpu is not None and gpu["links_to"].get(receiver.uuid, 0) > 0


def _pairs_finding(id: str, problem: str, pairs: Sequence[tuple[int, int, str]]) -> Finding | None:
    """pairs: two ranks, and the transport between them; the message names the first."""
    if not pairs:
        return None
    first, second, transport = pairs[0]
    ranks = {rank for sender, receiver, _ in pairs for rank in (sender, receiver)}
    message = f"{problem}, as ranks {first} and {second}: {transport}"
    return Finding(id, message, tuple(sorted(ranks)))


def _gpudirect(ranks: Sequence[RankTransports]) -> Finding | None:
    affected = []
    for rank in ranks:
        networks = [name for name in rank.log["peers"].values() if name.startswith(NET)]
        is_rdma = any(SOCKET not in name for name in networks)
        if is_rdma and rank.log["gdrdma"] is False:
            affected.append(rank.rank)
    if not affected:
        return None
    message = "the network card does not reach the GPU's memory: data pass through the host's"
    return Finding("gdr-absent", message, tuple(affected))


def _nvls(ranks: Sequence[RankTransports]) -> Finding | None:
    affected = []
    for rank in ranks:
        local_ranks = [other for other in ranks if other.host == rank.host]
        can_sum = rank.major >= NVLS_MAJOR and len(local_ranks) >= NVLS_RANKS
        if not can_sum or not rank.may_use_nvls or not _at_switch(rank):
            continue
        if rank.log["nvls_supported"] is False or rank.log["nvls_channels"] == 0:
            affected.append(rank.rank)
    if not affected:
        return None
    message = "NCCL does not sum in the NVLink switch (NVLS), which these GPUs could"
    return Finding("nvls-absent", message, tuple(affected))


def _at_switch(rank: RankTransports) -> bool:
    """Through a switch, all links of a GPU lead to every other one."""
    gpu = rank.wires["nvlink"].get(rank.uuid)
    if gpu is None or not gpu["links_to"]:
        return False
    links = len(gpu["links_gb_s"])
    return all(count == links for count in gpu["links_to"].values())
