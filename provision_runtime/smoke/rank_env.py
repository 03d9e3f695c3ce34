"""Which rank this process is, by the environment variables of torchrun or our launcher."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from ..dataclass import frozen
from .options import UsageError

REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
# Set by our launcher to the reading of the monotonic clock (one for all processes of a host) at
# which the whole run ends.
ENDS_AT = "PROVISION_SMOKE_ENDS_AT"
JOB = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", ENDS_AT)


@frozen
class RankEnv:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    master_addr: str
    master_port: int
    host: str
    # torchrun's agent hosts the store itself; then no rank may.
    store_is_hosted: bool
    # torchrun may restart all ranks; the store then still has the keys of the previous attempt.
    attempt: str
    ends_at: float | None
    # The name that torchrun or Slurm gave this run; empty if neither did.
    job: str = ""

    @property
    def run(self) -> str:
        """Distinguishes this run from others that use the same folder."""
        return f"{self.job}/{self.master_addr}:{self.master_port}/{self.attempt}"

    @property
    def launched(self) -> bool:
        """Whether our own launcher started this rank."""
        return self.ends_at is not None

    @property
    def ranks_per_core(self) -> float:
        """On this host, before the ranks have met."""
        return (self.local_world_size or self.world_size) / len(os.sched_getaffinity(0))

    @property
    def all_local(self) -> bool:
        return self.local_world_size == self.world_size


def from_environment(environment: Mapping[str, str] | None = None) -> RankEnv | None:
    """None if no launcher started this process as a rank. Raises UsageError if variables are
    missing or wrong."""
    variables = os.environ if environment is None else environment
    if "RANK" not in variables:
        return None
    missing = [name for name in REQUIRED if name not in variables]
    if missing:
        raise UsageError(
            f"RANK is set, but {', '.join(missing)} is not: "
            f"set all of {', '.join(REQUIRED)}, or none"
        )
    numbers = {}
    for name in NUMBERS:
        if name in variables and not variables[name].isdigit():
            raise UsageError(f"{name}={variables[name]!r} in the environment is not a number")
        if name in variables:
            numbers[name] = int(variables[name])
    return RankEnv(
        rank=numbers["RANK"],
        world_size=numbers["WORLD_SIZE"],
        local_rank=numbers["LOCAL_RANK"],
        local_world_size=numbers.get("LOCAL_WORLD_SIZE"),
        master_addr=variables["MASTER_ADDR"],
        master_port=numbers["MASTER_PORT"],
        host=socket.gethostname(),
        store_is_hosted=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
        ends_at=float(variables[ENDS_AT]) if ENDS_AT in variables else None,
        job=" ".join(variables[name] for name in JOB if name in variables),
    )
