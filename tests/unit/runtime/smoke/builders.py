"""Ranks, lines and options of a smoke test, as its unit tests need them."""

from __future__ import annotations

from typing import Any

from provision_runtime.facts import wires
from provision_runtime.smoke import collective_log, options, wire_limit
from provision_runtime.smoke.rank_env import RankEnv

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"


def parsed(*arguments: str, out: object = "out") -> options.Options:
    return options.parse(["--out", str(out), *arguments])


def rank_env(rank: int = 0, **fields: Any) -> RankEnv:
    """One of two ranks on two hosts, which our launcher did not start."""
    usual = {
        "world_size": 2,
        "local_rank": 0,
        "local_world_size": 1,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
        "host": f"n{rank}",
        "store_is_hosted": False,
        "attempt": "0",
        "ends_at": None,
    }
    return RankEnv(rank=rank, **{**usual, **fields})


def log_of(*names: str) -> collective_log.CallLog:
    log = collective_log.CallLog()
    for name in names:
        log.log(name)
    return log


def line(busbw: float | None, size: int = GIB, **fields: Any) -> Any:
    """A row of the table of collectives, as far as it is judged."""
    row = {"collective": "all_reduce", "dtype": "float32", "bytes": size, "busbw_gb_s": busbw}
    return {**row, **fields}


def nvlinks(gpus: int, links: int, gb_s: float, shape: str = "switch") -> dict[str, Any]:
    """The NVLinks of a host's GPUs: at a switch, where every link leads to every GPU, in a mesh of
    all GPUs, or bridged in pairs or fours."""
    group = {"pairs": 2, "quads": 4}.get(shape, gpus)
    result = {}
    for number in range(gpus if links else 0):
        first = number - number % group
        peers = [peer for peer in range(first, min(first + group, gpus)) if peer != number]
        to_each = links if shape == "switch" else links // max(group - 1, 1)
        links_to = {f"GPU-{peer}": to_each for peer in peers}
        result[f"GPU-{number}"] = {"links_gb_s": [gb_s] * links, "links_to": links_to}
    return result


def host_wires(
    name: str = "n1",
    *,
    gpus: int = 8,
    nvlink: dict[str, Any] | None = None,
    generation: int = 5,
    lanes: int = 16,
    ports: int = 0,
    port_gb_s: float = 50.0,
    driver: str = "mlx5_core",
    interfaces: dict[str, float] | None = None,
    device: str = H100,
    **fields: Any,
) -> wire_limit.HostWires:
    rate = wires.pcie_gb_s(generation, lanes)
    pcie = [
        {"address": f"a{number}", "generation": generation, "lanes": lanes, "gb_s": rate}
        for number in range(gpus)
    ]
    facts: Any = {
        "nvlink": nvlink or {},
        "pcie": pcie,
        "ports": [{"gb_s": port_gb_s, "driver": driver}] * ports,
        "interfaces": interfaces or {},
    }
    names = tuple((f"GPU-{number}", f"a{number}") for number in range(gpus))
    return wire_limit.HostWires(name, names, facts, "eth0", device, **fields)
