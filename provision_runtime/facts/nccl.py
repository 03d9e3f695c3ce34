"""The settings that NCCL and torch's use of it will find: variables and nccl.conf files, each with its effect.

Owns which settings cost speed or hide failures when they are left behind; asks, and judges nothing else. Names and meanings
are those of NCCL's "Environment Variables" page and of torch's ProcessGroupNCCL.hpp.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIXES = ("NCCL_", "TORCH_NCCL_")
SYSTEM_FILE = Path("/etc/nccl.conf")
# The variable that names a file in place of the one in the home; older releases do not know it.
FILE_VARIABLE = "NCCL_CONF_FILE"
FILE_VARIABLE_SINCE = (2, 23)
ENVIRONMENT = "environment"
NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")


@dataclass(frozen=True)
class Setting:
    name: str
    value: str
    # "environment", or the file.
    source: str
    effect: str
    # Whether it makes jobs slow or failures silent: nobody should have it without knowing.
    is_costly: bool


@dataclass(frozen=True)
class Meaning:
    effect: str
    is_costly: Callable[[str], bool]


def is_set(value: str) -> bool:
    return value.strip() != ""


def is_on(value: str) -> bool:
    """torch's switches are words or numbers, NCCL's are what strtoll reads: `1x` is 1, `x` is 0."""
    found = NUMBER.match(value)
    return bool(found and found[1].strip("0xX")) or value.strip().lower() in (
        "true",
        "t",
        "yes",
        "y",
        "on",
    )


def is_off(value: str) -> bool:
    return is_set(value) and not is_on(value)


def never(_: str) -> bool:
    return False


def one_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in words


MEANINGS = {
    "NCCL_P2P_DISABLE": Meaning(
        "GPUs do not reach one another directly: neither NVLink nor PCIe peer access", is_on
    ),
    "NCCL_P2P_LEVEL": Meaning(
        "how far apart two GPUs may be to reach one another directly; LOC is never",
        one_of("LOC", "0"),
    ),
    "NCCL_P2P_DIRECT_DISABLE": Meaning(
        "ranks of one process do not reach one another's memory directly", is_on
    ),
    "NCCL_SHM_DISABLE": Meaning(
        "ranks of one host do not share memory: what NVLink and PCIe cannot do goes over the network",
        is_on,
    ),
    "NCCL_IB_DISABLE": Meaning("InfiniBand and RoCE are not used, TCP sockets are", is_on),
    "NCCL_NET": Meaning("the network is chosen by name; Socket is TCP", one_of("SOCKET")),
    "NCCL_NET_GDR_LEVEL": Meaning(
        "how far apart a GPU and a network card may be for GPUDirect RDMA; LOC is never",
        one_of("LOC", "0"),
    ),
    "NCCL_NET_GDR_READ": Meaning("whether GPUDirect RDMA is used for sending too", is_off),
    "NCCL_DMABUF_ENABLE": Meaning("whether GPUDirect RDMA may use DMA-BUF", is_off),
    "NCCL_NVLS_ENABLE": Meaning(
        "whether NVLink SHARP sums in the switch: 482 GB/s with it, 368 without, on eight H200",
        is_off,
    ),
    "NCCL_COLLNET_ENABLE": Meaning(
        "whether the network's switches sum (SHARP); off unless set", never
    ),
    "NCCL_ALGO": Meaning("one algorithm for every size, instead of the fastest for each", is_set),
    "NCCL_PROTO": Meaning("one protocol for every size, instead of the fastest for each", is_set),
    "NCCL_MAX_NCHANNELS": Meaning("an upper bound on channels, and so on bandwidth", is_set),
    "NCCL_MAX_CTAS": Meaning("an upper bound on thread blocks, and so on bandwidth", is_set),
    "NCCL_NTHREADS": Meaning("threads per block, instead of NCCL's choice", is_set),
    "NCCL_BUFFSIZE": Meaning(
        "the size of the buffers between two GPUs, instead of NCCL's choice", is_set
    ),
    "NCCL_LAUNCH_MODE": Meaning("how kernels of several GPUs in one process are launched", never),
    "NCCL_CHECKS_DISABLE": Meaning("arguments are not checked", is_on),
    "NCCL_CHECK_POINTERS": Meaning("every pointer is checked at every call", is_on),
    "NCCL_DEBUG": Meaning("what NCCL prints; TRACE prints every call", one_of("TRACE")),
    "NCCL_SOCKET_IFNAME": Meaning("the interfaces for sockets", never),
    "NCCL_IB_HCA": Meaning("the InfiniBand adapters and ports", never),
    "NCCL_IB_GID_INDEX": Meaning("which address of a RoCE port is used", never),
    "NCCL_CROSS_NIC": Meaning(
        "whether a ring may leave through one network card and come back through another", never
    ),
    "NCCL_TOPO_FILE": Meaning(
        "the machine's topology from a file, instead of what is found", never
    ),
    "NCCL_GRAPH_FILE": Meaning("rings and trees from a file, instead of a search", never),
    "NCCL_CONF_FILE": Meaning(
        "settings from this file in place of the home's .nccl.conf, since NCCL 2.23", never
    ),
    "NCCL_VERSION": Meaning("no setting: the version that a base image announces", never),
    "NCCL_BLOCKING_WAIT": Meaning("the program waits on the CPU for every collective", is_on),
    "TORCH_NCCL_BLOCKING_WAIT": Meaning("the program waits on the CPU for every collective", is_on),
    "NCCL_ASYNC_ERROR_HANDLING": Meaning(
        "whether a failed or late collective ends the process; without, the others wait for ever",
        is_off,
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Meaning(
        "whether a failed or late collective ends the process; without, the others wait for ever",
        is_off,
    ),
    "TORCH_NCCL_ENABLE_MONITORING": Meaning("whether a watchdog that hangs is noticed", is_off),
    "TORCH_NCCL_ENABLE_TIMING": Meaning("every collective is timed", is_on),
    "TORCH_NCCL_NAN_CHECK": Meaning("every tensor is searched for NaN before it is sent", is_on),
    "TORCH_NCCL_DESYNC_DEBUG": Meaning("every collective is noted in the store", is_on),
    "CUDA_LAUNCH_BLOCKING": Meaning("the program waits for every kernel: nothing overlaps", is_on),
    "TORCH_DISTRIBUTED_DEBUG": Meaning(
        "what torch.distributed checks; DETAIL compares every collective between ranks",
        one_of("DETAIL"),
    ),
}
UNKNOWN = Meaning("not known to this test", never)


def settings(version: str | None = None) -> list[dict[str, Any]]:
    """What is set here, as this release of NCCL will find it; without one, as the newest would."""
    read = [(str(path), _read(path)) for path in files(os.environ, home(), version)]
    return [asdict(setting) for setting in effective(os.environ, read)]


def home() -> Path | None:
    """NCCL asks the user database, not $HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def files(
    environment: Mapping[str, str], home: Path | None, version: str | None = None
) -> list[Path]:
    """In the order in which NCCL reads them; what is set first stays."""
    knows_variable = (
        version is None
        or tuple(int(number) for number in version.split(".")[:2]) >= FILE_VARIABLE_SINCE
    )
    named = environment.get(FILE_VARIABLE, "") if knows_variable else ""
    own = Path(named) if named else home / ".nccl.conf" if home else None
    return [path for path in (own, SYSTEM_FILE) if path is not None]


def effective(environment: Mapping[str, str], texts: list[tuple[str, str]]) -> list[Setting]:
    """Each setting once, from the source that wins: the environment, then the files in their order."""
    sources = [(ENVIRONMENT, dict(environment)), *((name, parse(text)) for name, text in texts)]
    found: dict[str, Setting] = {}
    for source, given in sources:
        for name in sorted(given):
            if name in MEANINGS or name.startswith(PREFIXES):
                found.setdefault(name, _setting(name, given[name], source))
    return [found[name] for name in sorted(found)]


def parse(text: str) -> dict[str, str]:
    """NAME=VALUE lines, as NCCL takes them: `#` only at the beginning of a line, blanks belong to name and value, the first wins."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, value)
    return found


def _setting(name: str, value: str, source: str) -> Setting:
    meaning = MEANINGS.get(name, UNKNOWN)
    return Setting(name, value, source, meaning.effect, meaning.is_costly(value))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
