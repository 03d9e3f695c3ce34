"""Who this process is among the ranks, as torchrun, Slurm or our own launcher says in the environment."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Set by our launcher to the reading of the monotonic clock (one for all processes of a host) that ends the whole run.
ENDS_AT = "PROVISION_SMOKE_ENDS_AT"
JOB = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", ENDS_AT)


@dataclass(frozen=True)
class Place:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    master_addr: str
    master_port: int
    host: str
    # torchrun's agent hosts the store itself; then no rank may.
    store_is_hosted: bool
    # torchrun may start all ranks again; the store then still holds the keys of the attempt before.
    attempt: str
    ends_at: float | None
    # The name that torchrun or Slurm gave this run, if one did.
    job: str = ""

    @property
    def run(self) -> str:
        """What tells this run from others that use the same folder."""
        return f"{self.job}/{self.master_addr}:{self.master_port}/{self.attempt}"

    @property
    def launched(self) -> bool:
        return self.ends_at is not None

    @property
    def crowding(self) -> int:
        """Ranks of this host to each core that it may use, rounded up from a half."""
        ranks = self.local_world_size or self.world_size
        return max(1, math.ceil(ranks / len(os.sched_getaffinity(0)) / 2))

    @property
    def all_local(self) -> bool:
        return self.local_world_size == self.world_size


def from_environment(environment: Mapping[str, str] | None = None) -> Place | None:
    """None when nobody started us as a rank. Raises UsageError when the environment says only half of it."""
    given = os.environ if environment is None else environment
    if "RANK" not in given:
        return None
    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise UsageError(
            f"RANK is set, but {', '.join(missing)} is not: set all of {', '.join(NEEDED)}, or none"
        )
    return Place(
        rank=_number(given, "RANK"),
        world_size=_number(given, "WORLD_SIZE"),
        local_rank=_number(given, "LOCAL_RANK"),
        local_world_size=_number(given, "LOCAL_WORLD_SIZE")
        if "LOCAL_WORLD_SIZE" in given
        else None,
        master_addr=given["MASTER_ADDR"],
        master_port=_number(given, "MASTER_PORT"),
        host=socket.gethostname(),
        store_is_hosted=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=given.get("TORCHELASTIC_RESTART_COUNT", "0"),
        ends_at=float(given[ENDS_AT]) if ENDS_AT in given else None,
        job=" ".join(given[name] for name in JOB if name in given),
    )


def _number(given: Mapping[str, str], name: str) -> int:
    if not given[name].isdigit():
        raise UsageError(f"{name}={given[name]!r} in the environment is not a number")
    return int(given[name])
