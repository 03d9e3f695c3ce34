"""What NCCL chose, read from its own log (NCCL_DEBUG=INFO): the network, how each peer is reached,
GPUDirect RDMA, NVLS and plug-ins.

NCCL has no other way to tell. The lines are those of NCCL 2.10 to 2.30 in public logs, which
tests/unit/runtime/facts/test_facts_nccl_log.py names; a line of another form is skipped, and what no line says is
None: unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional

P2P, SHM, NET = "P2P", "SHM", "NET"
SOCKET = "Socket"
VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
# Up to 2.26 one network is used; later each communicator is assigned one.
NETWORK = re.compile(r"NCCL INFO (?:Using network|Assigned NET plugin) (.+?)(?: to comm)?\s*$")
# "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/2/GDRDMA"; up to 2.8 "Ring 00 : ...".
CHANNEL = re.compile(
    r"NCCL INFO (?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? via (\w+)(.*)$"
)
NVLS_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels,.* (\d+) nvls channels")
COLL_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
NVLS_SUPPORT = re.compile(r"NCCL INFO NVLS multicast support is (not )?available")
PLUGIN_NAME = re.compile(
    r"NET/OFI (?:Using|Initializing) (aws-ofi-nccl \S+)"
    r"|NET/Plugin: Loaded net plugin (.+?)\s*$"
    r"|Plugin Path : (\S+)"
)
WARNING = re.compile(r"NCCL WARN (.*)$")
MAX_WARNINGS = 20


@dataclass
class Transports:
    """The log of one rank. `peers`: the transport to each rank that it sends to, and `gdrdma`
    whether the network moves data to and from the GPU directly."""

    version: Optional[str] = None
    network: Optional[str] = None
    channels: Optional[int] = None
    nvls_supported: Optional[bool] = None
    nvls_channels: Optional[int] = None
    gdrdma: Optional[bool] = None
    peers: Dict[int, str] = field(default_factory=dict)
    plugins: List[str] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        # JSON has no numbers as keys.
        peers = {str(rank): transport for rank, transport in sorted(self.peers.items())}
        return {**asdict(self), "peers": peers}


def parse(lines: Iterable[str], rank: int) -> Transports:
    """The log of one rank. Lines of other ranks, in a log that several share, are not counted for
    its peers."""
    result = Transports()
    for line in lines:
        _read_line(line.rstrip("\n"), rank, result)
    return result


def _read_line(line: str, rank: int, result: Transports) -> None:
    channel = CHANNEL.search(line)
    if channel:
        _read_channel(channel, rank, result)
        return
    version = VERSION.search(line)
    if version:
        result.version = version[1]
    network = NETWORK.search(line)
    if network:
        result.network = network[1]
    channels = COLL_CHANNELS.search(line)
    if channels:
        result.channels = int(channels[1])
    nvls = NVLS_CHANNELS.search(line)
    if nvls:
        result.nvls_channels = int(nvls[2])
    support = NVLS_SUPPORT.search(line)
    if support:
        result.nvls_supported = support[1] is None
    plugin = PLUGIN_NAME.search(line)
    if plugin:
        name = next(text for text in plugin.groups() if text)
        if name not in result.plugins:
            result.plugins.append(name)
    warning = WARNING.search(line)
    if warning and len(result.warnings) < MAX_WARNINGS:
        result.warnings.append(warning[1])


def _read_channel(match: re.Match[str], rank: int, result: Transports) -> None:
    source, target = int(match[2]), int(match[3])
    direction, transport, rest = match[4], match[5], match[6]
    if transport == NET and rank in (source, target):
        # One channel without it is enough to slow the ring down.
        uses_gdrdma = "GDRDMA" in rest
        result.gdrdma = uses_gdrdma if result.gdrdma is None else result.gdrdma and uses_gdrdma
    if source != rank or direction == "receive":
        return
    result.peers[target] = f"{transport}{rest}".split("/GDRDMA")[0].strip()
