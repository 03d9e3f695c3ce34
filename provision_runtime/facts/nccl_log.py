"""What NCCL chose, read from its own log (NCCL_DEBUG=INFO): the network, how each peer is reached,
GPUDirect RDMA, NVLS, plug-ins, the hosts that it counts, multi-node NVLink, and the algorithms.

NCCL has no other way to tell. The lines are those of NCCL 2.10 to 2.30 in public logs, which
tests/unit/runtime/facts/test_facts_nccl_log.py names; a line of another form is skipped, and what no line says is
None: unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional

P2P, SHM, NET = "P2P", "SHM", "NET"
SOCKET = "Socket"
# "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/2/GDRDMA"; up to 2.8 "Ring 00 : ...".
CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? via (\w+)(.*)$"
)
# A field of Transports, the line that has it, and what its text means.
FIELDS: dict[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "version": (re.compile(r"NCCL version (\d+\.\d+\.\d+)"), str),
    # Up to 2.26 one network is used; later each communicator is assigned one.
    "network": (
        re.compile(r"NCCL INFO (?:Using network|Assigned NET plugin) (.+?)(?: to comm)?\s*$"),
        str,
    ),
    "nvls_channels": (re.compile(r"NCCL INFO \d+ coll channels,.* (\d+) nvls channels"), int),
    "nvls_supported": (
        re.compile(r"NCCL INFO NVLS multicast support is (available|not available)"),
        lambda text: text == "available",
    ),
    # The NVLink domain of a GPU, since 2.20. A UUID of zeros: there is none that spans hosts.
    "clique": (
        re.compile(r"NCCL INFO MNNVL busId \S+ fabric UUID (?!0\.0 )(\w+\.\w+ cliqueId \w+)"),
        str,
    ),
}
PLUGIN_NAME = re.compile(
    r"NET/OFI (?:Using|Initializing) (aws-ofi-nccl \S+)"
    r"|NET/OFI Selected (?:Provider|provider) is ([^\s,]+)"
    r"|NET/Plugin: Loaded net plugin (.+?)\s*$"
    r"|Plugin Path : (\S+)"
)
# Since 2.20. A process may have communicators of fewer ranks, too.
COMMUNICATOR = re.compile(
    r"NCCL INFO comm \S+ rank \d+ nRanks (\d+) nNodes (\d+) localRanks (\d+)"
    r" localRank \d+ MNNVL (\d)"
)
# Subsystem TUNING, of rank 0 only, since 2.24; before, algorithm and protocol are numbers.
CHOICE = re.compile(r"NCCL INFO (\w+: \d+ Bytes) -> Algo ([A-Z]\w+) proto ([A-Z]\w+)")


@dataclass
class Transports:
    """The log of one rank. `peers`: the transport to each rank that it sends to, and `gdrdma`
    whether the network moves data to and from the GPU directly. `ranks`, `nodes`, `local_ranks`: of
    the largest communicator, the hosts as NCCL counts them; with multi-node NVLink (`mnnvl`) those
    of a domain are one. `clique`: the NVLink domain of the GPU, if it may span hosts. `algorithms`:
    algorithm and protocol by collective and bytes."""

    version: Optional[str] = None
    network: Optional[str] = None
    nvls_supported: Optional[bool] = None
    nvls_channels: Optional[int] = None
    gdrdma: Optional[bool] = None
    ranks: int = 0
    nodes: Optional[int] = None
    local_ranks: Optional[int] = None
    mnnvl: Optional[bool] = None
    clique: Optional[str] = None
    algorithms: Dict[str, str] = field(default_factory=dict)
    peers: Dict[int, str] = field(default_factory=dict)
    plugins: List[str] = field(default_factory=list)


def parse(lines: Iterable[str], rank: int) -> Transports:
    """The log of one rank. Lines of other ranks, in a log that several share, are not counted for
    its peers."""
    result = Transports()
    for line in lines:
        channel = CHANNEL.search(line)
        if channel:
            source, target = int(channel[2]), int(channel[3])
            direction, transport, rest = channel[4], channel[5], channel[6]
            if transport == NET and rank in (source, target):
                # One channel without it is enough to slow the ring down.
                result.gdrdma = "GDRDMA" in rest and result.gdrdma is not False
            if source == rank and direction != "receive":
                result.peers[target] = f"{transport}{rest}".split("/GDRDMA")[0].strip()
            continue
        for name, (pattern, convert) in FIELDS.items():
            match = pattern.search(line)
            if match:
                setattr(result, name, convert(match[1]))
        communicator = COMMUNICATOR.search(line)
        if communicator and int(communicator[1]) >= result.ranks:
            result.ranks, result.nodes, result.local_ranks = map(int, communicator.groups()[:3])
            result.mnnvl = communicator[4] == "1"
        choice = CHOICE.search(line)
        if choice:
            result.algorithms[choice[1]] = f"{choice[2]}/{choice[3]}"
        plugin = PLUGIN_NAME.search(line)
        name = next(filter(None, plugin.groups()), "") if plugin else ""
        if name and name not in result.plugins:
            result.plugins.append(name)
    return result
