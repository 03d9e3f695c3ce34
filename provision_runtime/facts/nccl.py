"""The settings that NCCL, and torch for NCCL, will read: variables and nccl.conf files, each with
its effect.

Owns which settings cost speed or hide failures. Names and meanings come from NCCL's "Environment
Variables" page and from torch's ProcessGroupNCCL.hpp.
"""

from __future__ import annotations

import difflib
import mmap
import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..fs.files import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .model import NcclSetting

PREFIXES = ("NCCL_", "TORCH_NCCL_")
SYSTEM_FILE = Path("/etc/nccl.conf")
# The variable that names a file instead of the one in the home; older releases ignore it.
FILE_VARIABLE = "NCCL_CONF_FILE"
FILE_VARIABLE_SINCE = (2, 23)
ENVIRONMENT = "environment"
NAME_IN_LIBRARY = re.compile(rb"NCCL_[A-Z0-9_]+(?=\0)")
# The least likeness of a mistyped name and the right one: one or two letters of fifteen.
NEARLY = 0.88
NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")


@dataclass(frozen=True)
class SettingMeaning:
    effect: str
    is_costly: Callable[[str], bool]


def _is_set(value: str) -> bool:
    return value.strip() != ""


def _is_on(value: str) -> bool:
    """NCCL reads its switches by strtoll: `1x` is 1, and a word is 0 (ncclLoadParam, param.cc)."""
    number = NUMBER.match(value)
    return number is not None and number[1].strip("0xX") != ""


def _is_off(value: str) -> bool:
    return _is_set(value) and not _is_on(value)


def _is_on_for_torch(value: str) -> bool:
    """torch's switches are words or numbers."""
    return _is_on(value) or value.strip().lower() in ("true", "t", "yes", "y", "on")


def _is_off_for_torch(value: str) -> bool:
    return _is_set(value) and not _is_on_for_torch(value)


def _never(_: str) -> bool:
    return False


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in values


MEANINGS = {
    "NCCL_P2P_DISABLE": SettingMeaning(
        "GPUs do not access one another directly: neither through NVLink nor PCIe", _is_on
    ),
    "NCCL_P2P_LEVEL": SettingMeaning(
        "how far apart two GPUs may be to access one another directly; LOC means never",
        _one_of("LOC", "0"),
    ),
    "NCCL_P2P_DIRECT_DISABLE": SettingMeaning(
        "ranks of one process do not access one another's memory directly", _is_on
    ),
    "NCCL_SHM_DISABLE": SettingMeaning(
        "ranks of one host do not share memory: what NVLink and PCIe cannot carry uses the network",
        _is_on,
    ),
    "NCCL_IB_DISABLE": SettingMeaning(
        "TCP sockets are used instead of InfiniBand and RoCE", _is_on
    ),
    "NCCL_NET": SettingMeaning("the name of the network to use; Socket is TCP", _one_of("SOCKET")),
    "NCCL_NET_GDR_LEVEL": SettingMeaning(
        "how far apart a GPU and a network card may be for GPUDirect RDMA; LOC means never",
        _one_of("LOC", "0"),
    ),
    "NCCL_NET_GDR_READ": SettingMeaning("whether GPUDirect RDMA is also used for sending", _is_off),
    "NCCL_DMABUF_ENABLE": SettingMeaning("whether GPUDirect RDMA may use DMA-BUF", _is_off),
    "NCCL_NVLS_ENABLE": SettingMeaning(
        "whether NVLink SHARP sums in the switch: 482 GB/s with it, 368 without, on eight H200",
        _is_off,
    ),
    "NCCL_COLLNET_ENABLE": SettingMeaning(
        "whether the network's switches sum (SHARP); off unless set", _never
    ),
    "NCCL_ALGO": SettingMeaning(
        "one algorithm for every size, instead of the fastest for each", _is_set
    ),
    "NCCL_PROTO": SettingMeaning(
        "one protocol for every size, instead of the fastest for each", _is_set
    ),
    "NCCL_MAX_NCHANNELS": SettingMeaning(
        "an upper bound on channels, and so on bandwidth", _is_set
    ),
    "NCCL_MAX_CTAS": SettingMeaning(
        "an upper bound on thread blocks, and so on bandwidth", _is_set
    ),
    "NCCL_NTHREADS": SettingMeaning("threads per block, instead of NCCL's choice", _is_set),
    "NCCL_BUFFSIZE": SettingMeaning(
        "the size of the buffers between two GPUs, instead of NCCL's choice", _is_set
    ),
    "NCCL_LAUNCH_MODE": SettingMeaning(
        "how kernels of several GPUs in one process are launched", _never
    ),
    "NCCL_CHECKS_DISABLE": SettingMeaning("arguments are not checked", _is_on),
    "NCCL_CHECK_POINTERS": SettingMeaning("every pointer is checked at every call", _is_on),
    "NCCL_DEBUG": SettingMeaning("what NCCL prints; TRACE prints every call", _one_of("TRACE")),
    "NCCL_SOCKET_IFNAME": SettingMeaning("the interfaces for sockets", _never),
    "NCCL_IB_HCA": SettingMeaning("the InfiniBand adapters and ports", _never),
    "NCCL_IB_GID_INDEX": SettingMeaning("which address of a RoCE port is used", _never),
    "NCCL_CROSS_NIC": SettingMeaning(
        "whether a ring may leave through one network card and come back through another", _never
    ),
    "NCCL_TOPO_FILE": SettingMeaning(
        "the machine's topology from a file, instead of detecting it", _never
    ),
    "NCCL_GRAPH_FILE": SettingMeaning(
        "rings and trees from a file, instead of searching for them", _never
    ),
    "NCCL_CONF_FILE": SettingMeaning(
        "a file of settings that replaces .nccl.conf in the home, since NCCL 2.23", _never
    ),
    "NCCL_VERSION": SettingMeaning("not a setting: the version that a base image declares", _never),
    "NCCL_BLOCKING_WAIT": SettingMeaning(
        "the program waits on the CPU for every collective", _is_on_for_torch
    ),
    "TORCH_NCCL_BLOCKING_WAIT": SettingMeaning(
        "the program waits on the CPU for every collective", _is_on_for_torch
    ),
    "NCCL_ASYNC_ERROR_HANDLING": SettingMeaning(
        "whether a failed or late collective ends the process; "
        "without it, the other ranks wait forever",
        _is_off_for_torch,
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": SettingMeaning(
        "whether a failed or late collective ends the process; "
        "without it, the other ranks wait forever",
        _is_off_for_torch,
    ),
    "TORCH_NCCL_ENABLE_MONITORING": SettingMeaning(
        "whether a watchdog that hangs is detected", _is_off_for_torch
    ),
    "TORCH_NCCL_ENABLE_TIMING": SettingMeaning("every collective is timed", _is_on_for_torch),
    "TORCH_NCCL_NAN_CHECK": SettingMeaning(
        "every tensor is searched for NaN before it is sent", _is_on_for_torch
    ),
    "TORCH_NCCL_DESYNC_DEBUG": SettingMeaning(
        "every collective is recorded in the store", _is_on_for_torch
    ),
    "CUDA_LAUNCH_BLOCKING": SettingMeaning(
        "the program waits for every kernel: nothing overlaps", _is_on_for_torch
    ),
    "TORCH_DISTRIBUTED_DEBUG": SettingMeaning(
        "what torch.distributed checks; DETAIL compares every collective between ranks",
        _one_of("DETAIL"),
    ),
}
UNKNOWN = SettingMeaning("unknown to this test", _never)


def settings(version: str | None = None) -> list[NcclSetting]:
    """The settings that this version of NCCL (by default the newest) will read in this process."""
    texts = [(str(path), read_text(path)) for path in files(os.environ, home(), version)]
    return effective(os.environ, texts)


def home() -> Path | None:
    """From the user database, as NCCL does, not $HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def files(
    environment: Mapping[str, str], home: Path | None, version: str | None = None
) -> list[Path]:
    """In the order in which NCCL reads them; the first value of a setting wins."""
    reads_variable = True
    if version is not None:
        release = tuple(int(number) for number in version.split(".")[:2])
        reads_variable = release >= FILE_VARIABLE_SINCE
    configured = environment.get(FILE_VARIABLE, "") if reads_variable else ""
    result = []
    if configured:
        result.append(Path(configured))
    elif home:
        result.append(home / ".nccl.conf")
    result.append(SYSTEM_FILE)
    return result


def effective(environment: Mapping[str, str], texts: list[tuple[str, str]]) -> list[NcclSetting]:
    """Each setting once, from the source that wins: the environment, then the files in order."""
    sources = [(ENVIRONMENT, dict(environment))]
    sources += [(name, parse(text)) for name, text in texts]
    result: dict[str, NcclSetting] = {}
    for source, values in sources:
        for name, value in values.items():
            is_ours = name in MEANINGS or name.startswith(PREFIXES)
            if is_ours and name not in result:
                meaning = MEANINGS.get(name, UNKNOWN)
                effect, is_costly = meaning.effect, meaning.is_costly(value)
                is_switch = meaning.is_costly in (_is_on, _is_off)
                if is_switch and _is_set(value) and NUMBER.match(value) is None:
                    effect += f"; NCCL reads numbers only, so {value!r} means 0"
                    is_costly = True
                result[name] = {
                    "name": name,
                    "value": value,
                    "source": source,
                    "effect": effect,
                    "is_costly": is_costly,
                }
    return [result[name] for name in sorted(result)]


def names_in(library: str) -> frozenset[str]:
    """The variables that a build of NCCL knows: their names are in its library. Empty if it cannot
    be read."""
    try:
        with open(library, "rb") as file, mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_READ
        ) as content:
            return frozenset(name.decode() for name in NAME_IN_LIBRARY.findall(content))
    except (OSError, ValueError):
        return frozenset()


def mistyped(names: Iterable[str], library: str) -> dict[str, str]:
    """The variables of NCCL that neither we nor this library know and that are nearly like one that
    the library knows; with that one. Others may belong to a plug-in."""
    unknown = [name for name in names if name.startswith("NCCL_") and name not in MEANINGS]
    if not unknown:
        return {}
    valid = names_in(library)
    result = {}
    for name in unknown:
        if valid and name not in valid:
            nearest = difflib.get_close_matches(name, {*valid, *MEANINGS}, 1, NEARLY)
            if nearest:
                result[name] = nearest[0]
    return result


def parse(text: str) -> dict[str, str]:
    """NAME=VALUE lines, as NCCL reads them: `#` only at the beginning of a line, blanks belong to
    name and value, the first value wins."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(name, value)
    return values
