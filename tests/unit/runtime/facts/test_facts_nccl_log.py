"""NCCL's own log says which way its data take: lines of public logs, shortened."""

from __future__ import annotations

import pytest

from provision_runtime.facts import nccl_log

# NVIDIA/nccl-tests#252: two hosts with four GPUs, InfiniBand through HPC-X' plug-in.
IB = """\
kolyoz1:27225:27225 [3] NCCL INFO Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so
kolyoz1:27225:27907 [3] NCCL INFO Using network IBext_v8
kolyoz1:27225:27907 [3] NCCL INFO Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IBext_v8/3/GDRDMA
kolyoz1:27225:27907 [3] NCCL INFO Channel 03/0 : 3[3] -> 7[3] [send] via NET/IBext_v8/3/GDRDMA
kolyoz1:27225:27907 [3] NCCL INFO Channel 02/0 : 3[3] -> 1[1] via P2P/CUMEM
kolyoz1:27224:27909 [2] NCCL INFO Channel 02/0 : 2[2] -> 0[0] via SHM/direct/direct
"""
# NVIDIA/nccl#1814: the same without GPUDirect RDMA.
WITHOUT_GDRDMA = """\
test:987:1260 [7] NCCL INFO Channel 03/0 : 47[7] -> 39[7] [receive] via NET/IBext_v8/2
"""
# NVIDIA/nccl#952: no InfiniBand.
SOCKET = """\
x:926:1151 [7] NCCL INFO NET/IB : No device found.
x:926:1151 [7] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>
x:926:1151 [7] NCCL INFO Using network Socket
NCCL version 2.14.3+cuda11.7
x:926:1151 [7] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3
x:926:1151 [7] NCCL INFO Channel 00/0 : 15[7] -> 14[6] via P2P/IPC/read
"""
# NVIDIA/nccl#527.
EFA = """\
ip-10-216-179-87:417133:417180 [2] NCCL INFO NET/OFI Using aws-ofi-nccl 1.4.0aws
ip-10-216-179-87:417131:417177 [0] NCCL INFO NET/OFI Selected Provider is efa
ip-10-216-179-87:417131:417177 [0] NCCL INFO Using network AWS Libfabric
"""
# aws/aws-ofi-nccl#850: one EFA without GPUDirect. Later releases name the fabric, too.
EFA_G5 = """\
node-0-0:194:724 [3] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v10)
node-0-0:194:724 [3] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.16.2
node-0-0:194:724 [3] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)
node-0-0:194:724 [3] NCCL INFO NET/OFI Need to force simple protocol: GDR not supported
node-0-0:194:724 [3] NCCL INFO Using network Libfabric
node-0-0:194:724 [3] NCCL INFO Channel 00/0 : 7[3] -> 0[0] [receive] via NET/Libfabric/0
node-0-0:194:724 [3] NCCL INFO Channel 01/0 : 7[3] -> 0[0] [send] via NET/Libfabric/0
"""
# NVIDIA/nccl#1597: p5en, 16 adapters.
EFA_P5EN = """\
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
8h200-2:6831:6840 [0] NCCL INFO Using network Libfabric
8h200-2:6831:6840 [3] NCCL INFO Channel 03/0 : 3[3] -> 11[3] [send] via NET/Libfabric/3/GDRDMA/Shared
"""
# Google Cloud's documentation of NCCL/gIB (over RoCE) on A3 Ultra, and channels of Ray there.
GIB = """\
a3ultra-vm-0:606:642 [6] NCCL INFO NET/gIB : Initializing gIB v1.0.6
a3ultra-vm-0:606:642 [6] NCCL INFO NET/gIB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
a3ultra-vm-0:606:642 [6] NCCL INFO Using network gIB
a3ultra-vm-0:606:642 [2] NCCL INFO Channel 03/0 : 2[2] -> 11[3] [send] via NET/gIB/3/GDRDMA
"""
# GPUDirect-TCPXO on a3-megagpu: the plugin has this name until it is initialized.
FASTRAK = """\
h-0:1:2 [1] NCCL INFO NET/Plugin: Loaded net plugin uninitialized_shim_v7 (v7)
h-0:1:2 [1] NCCL INFO Initializing network FasTrak, version: 1.0.17
h-0:1:2 [1] NCCL INFO Using network FasTrak
h-0:1:2 [1] NCCL INFO Channel 00/0 : 0[1] -> 1[1] [send] via NET/uninitialized_shim_v7/1/GDRDMA
"""
# ROCm/rccl#1261: UCX. RCCL ends the line with the communicator.
UCX = """\
node01:5646:5657 [0] NCCL INFO Plugin Path : /opt/lib/librccl-net.so
node01:5646:5657 [0] NCCL INFO P2P plugin UCX
node01:5646:5657 [0] NCCL INFO Using network UCX
node01:5646:5657 [0] NCCL INFO Channel 00/0 : 1[7000] -> 0[b7000] [receive] via NET/UCX/0/GDRDMA comm 0x22fcfb0 nRanks 02
node02:10366:10376 [0] NCCL INFO Channel 00/0 : 1[7000] -> 0[b7000] [send] via NET/UCX/0/GDRDMA comm 0x2197130 nRanks 02
"""
# NVIDIA/nccl#1453 and #1189.
NVLS = """\
h100:227602:227667 [0] NCCL INFO NVLS multicast support is available on dev 0
h100:227602:227667 [0] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
"""
# NVIDIA/nccl-tests#166: addresses of the bus instead of device numbers (#188), and no /0.
OLDER = """\
ubuntu:39964:40050 [6] NCCL INFO Channel 09 : 6[ca000] -> 7[c7000] via SHM/direct/direct
"""
# NVIDIA/nccl#2303: GPUs of a GB200 NVL72, NCCL 2.30.
NEWER = """\
cn13:2619530:2619530 [0] NCCL INFO NCCL version 2.30.7+cuda13.3
cn13:2619530:2619530 [0] NCCL INFO GIN/Plugin: Assigned plugin GIN_IB_GDAKI type 3 to comm
cn13:2619530:2619530 [0] NCCL INFO Using network IB
cn13:2619530:2619530 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL
cn13:2619532:2619532 [2] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""
# The forms of NVIDIA/nccl:src/init.cc and src/enqueue.cc, 2.20 to 2.30.
SCALE_UP = """\
cn13:1:1 [0] NCCL INFO MNNVL busId 0x1901000 fabric UUID 5ca1ab1e.c0ffee cliqueId 0x7ffe state 3 healthMask 0x2aa
cn13:1:1 [0] NCCL INFO comm 0x55 rank 0 nRanks 72 nNodes 1 localRanks 72 localRank 0 MNNVL 1
cn13:1:1 [0] NCCL INFO comm 0x66 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
cn13:1:1 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..23}
"""


def parse(text: str, rank: int) -> nccl_log.Transports:
    return nccl_log.parse(text.splitlines(keepends=True), rank)


IB_PLUGIN = "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"


@pytest.mark.parametrize(
    ("text", "rank", "expected"),
    [
        (IB, 3, {"network": "IBext_v8", "gdrdma": True, "plugins": [IB_PLUGIN]}),
        (IB, 3, {"peers": {7: "NET/IBext_v8/3", 1: "P2P/CUMEM"}}),
        (WITHOUT_GDRDMA, 39, {"gdrdma": False}),
        (SOCKET, 15, {"network": "Socket", "version": "2.14.3", "gdrdma": False}),
        (SOCKET, 15, {"peers": {6: "NET/Socket/3", 14: "P2P/IPC/read"}}),
        (EFA, 0, {"network": "AWS Libfabric", "plugins": ["aws-ofi-nccl 1.4.0aws", "efa"]}),
        (EFA_G5, 7, {"plugins": ["Libfabric (v10)", "aws-ofi-nccl 1.16.2", "efa"]}),
        (EFA_G5, 7, {"gdrdma": False, "peers": {0: "NET/Libfabric/0"}}),
        (EFA_P5EN, 3, {"gdrdma": True, "peers": {11: "NET/Libfabric/3"}, "plugins": ["efa"]}),
        (GIB, 2, {"network": "gIB", "gdrdma": True, "peers": {11: "NET/gIB/3"}}),
        (FASTRAK, 0, {"network": "FasTrak", "gdrdma": True}),
        (FASTRAK, 0, {"peers": {1: "NET/uninitialized_shim_v7/1"}}),
        (UCX, 1, {"network": "UCX", "gdrdma": True, "peers": {0: "NET/UCX/0"}}),
        ("n:1:2 [0] NCCL INFO Assigned NET plugin IB to comm\n", 0, {"network": "IB"}),
        ("n:1:2 [0] NCCL INFO Using network Libfabric\n", 0, {"network": "Libfabric"}),
        (NVLS, 0, {"nvls_supported": True, "nvls_channels": 16}),
        (
            "x:1:2 [7] NCCL INFO NVLS multicast support is not available on dev 7",
            7,
            {"nvls_supported": False},
        ),
        (OLDER, 6, {"peers": {7: "SHM/direct/direct"}}),
        # That the card could is no channel that does.
        (NEWER, 0, {"version": "2.30.7", "network": "IB", "gdrdma": None}),
        (NEWER, 0, {"peers": {1: "P2P/MNNVL"}}),
        (SCALE_UP, 0, {"clique": "5ca1ab1e.c0ffee cliqueId 0x7ffe", "mnnvl": True}),
        # The largest communicator counts, not that of a pair.
        (SCALE_UP, 0, {"ranks": 72, "nodes": 1, "local_ranks": 72}),
        (SCALE_UP, 0, {"algorithms": {"AllReduce: 1073741824 Bytes": "NVLS/SIMPLE"}}),
        # A switch of one host has no domain that spans hosts.
        (SCALE_UP.replace("5ca1ab1e.c0ffee", "0.0"), 0, {"clique": None}),
    ],
)
def test_lines_of_public_logs(text: str, rank: int, expected: dict[str, object]) -> None:
    transports = parse(text, rank)
    assert {name: getattr(transports, name) for name in expected} == expected


def test_one_channel_without_gpudirect_counts() -> None:
    """It slows the whole ring down, whichever channel is set up last."""
    without = WITHOUT_GDRDMA.replace("39[7]", "3[3]")
    assert parse(without + IB, 3).gdrdma is False
    assert parse(IB + without, 3).gdrdma is False


def test_what_another_rank_receives_is_no_transport_of_ours() -> None:
    line = "n1:1:2 [3] NCCL INFO Channel 03/0 : 3[3] -> 7[3] [receive] via NET/Socket/0\n"
    assert parse(line, 3).peers == {}


def test_what_no_line_says_is_unknown() -> None:
    transports = parse("n:1:2 [0] NCCL INFO a line of a future release\n\x00\xff", 0)
    assert transports == nccl_log.Transports()
