"""Ranks, lines and options of a smoke test, as its unit tests need them."""

from __future__ import annotations

from typing import Any

from provision_runtime.smoke import collective_log, options
from provision_runtime.smoke.rank_env import RankEnv

GIB = 1 << 30


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


def line(
    busbw: float | None, size: int = GIB, collective: str = "all_reduce", **fields: Any
) -> Any:
    """A row of the table of collectives, as far as it is judged."""
    row = {"collective": collective, "dtype": "float32", "bytes": size, "busbw_gb_s": busbw}
    return {**row, **fields}
