"""Numbers and variables of a job, as people write them on a command line. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.core.errors import InvalidSpec

# A type as Slurm and NVIDIA name it may begin with a digit: 2080ti, 1g.10gb, NVIDIA-H100-80GB-HBM3.
_GPUS = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_.+-]*):)?([0-9]{1,6})")
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)(?:i?B)?", re.I)
_KIB = {"K": 1, "": 2**10, "M": 2**10, "G": 2**20, "T": 2**30}
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
# torchrun and launch itself set these for each rank or node, over what a user gives.
_SET_BY_LAUNCH = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|NODE_RANK|NNODES|SLURM_.*"
    r"|PROVISION_JOB_KEY"
)


def parse_gpus(text: str) -> tuple[str, int]:
    """The type and the number of GPUs in `4` or `a100:4`. Raises InvalidSpec."""
    match = _GPUS.fullmatch(text.strip())
    if match is None or (match[1] and int(match[2]) == 0):
        raise InvalidSpec(
            f"{text!r} is not a number of GPUs.", advice="Write 4, or with their type a100:4."
        )
    return match[1] or "", int(match[2])


def parse_memory(text: str) -> int:
    """MiB of `64G`, `900M`, `1T`; a number alone is MiB, as for sbatch, and 0 all memory. Raises
    InvalidSpec."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidSpec(f"{text!r} is not an amount of memory.", advice="Write 64G or 900M.")
    return -(-int(match[1]) * _KIB[match[2].upper()] // 2**10)


def parse_variables(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Names and values of `NAME=VALUE`. Raises InvalidSpec, also for those that launch sets."""
    variables: dict[str, str] = {}
    for text in texts:
        match = _VARIABLE.fullmatch(text)
        if match is None or "\0" in text:
            raise InvalidSpec(f"--env {text!r} is not NAME=VALUE.")
        name, value = match.groups()
        if _SET_BY_LAUNCH.fullmatch(name):
            raise InvalidSpec(
                f"--env {name}: the job itself sets it, for each node and rank.",
                advice="Leave it out.",
            )
        if variables.setdefault(name, value) != value:
            raise InvalidSpec(f"--env {name} has two values.", advice="Give it once.")
    return tuple(variables.items())
