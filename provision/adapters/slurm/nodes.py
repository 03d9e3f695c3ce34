"""Nodes, partitions and the current allocation: as sinfo and the variables of a job have them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from provision.adapters.slurm.command import run_slurm
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, Unreachable

# Name, host name, address, state, features, GRES, CPUs, memory, partition; the reason is last,
# because users write it.
_FORMAT = "%N|%n|%o|%T|%f|%G|%c|%m|%R|%E"
_COLUMNS = 10
_NULL = "(null)"
# A state, and signs such as the star of `idle*` (sinfo(1), NODE STATE CODES).
_STATE = re.compile(r"([a-z_]+)([^a-z_]*)", re.IGNORECASE)
# Not responding, powered off, powering up, powering down, rebooting.
_SILENT_FLAGS = frozenset("*~#%^")
_SILENT_STATES = ("down", "unk", "power", "future")
# Until an administrator resumes it.
_CLOSED_STATES = ("down", "drain", "fail", "inval", "unk", "error", "future")


@frozen
class SlurmNode:
    """A node as sinfo shows it. state: `idle`, `drained`, ...; flags: the characters after it."""

    name: str
    host: str
    state: str
    flags: str
    features: tuple[str, ...]
    gpus: int
    gpu_type: str
    gpus_by_type: Mapping[str, int]
    cpus: int
    reason: str

    @property
    def responds(self) -> bool:
        """Whether slurmctld hears from the node, as of its last ping."""
        is_silent = bool(_SILENT_FLAGS & set(self.flags))
        return not is_silent and not self.state.startswith(_SILENT_STATES)

    @property
    def starts_jobs(self) -> bool:
        """Whether jobs start there now or later by themselves: not if somebody must first repair or
        resume it. Nodes that are reserved, or powered off to save energy, do."""
        return "*" not in self.flags and not self.state.startswith(_CLOSED_STATES)


@frozen
class Partition:
    """What sinfo says of a partition. state: `up`, `down`, `drain` or `inact`. max_time,
    min_nodes, max_nodes: of a job, as sinfo writes them, `infinite` too."""

    state: str
    max_time: str
    min_nodes: str
    max_nodes: str


def list_nodes(partition: str | None = None) -> list[SlurmNode]:
    """The nodes of a partition, or of all partitions. Raises InvalidSpec for an unknown partition
    and the errors of `partitions`."""
    if partition is not None:
        existing = partitions()
        if partition not in existing:
            raise InvalidSpec(
                f"Slurm has no partition `{partition}`.",
                advice=f"Partitions: {', '.join(existing) or 'none'}.",
            )
    selection = ["-p", partition] if partition else ["-a"]
    return parse_nodes(_sinfo("-N", *selection, "-o", _FORMAT))


def partitions() -> list[str]:
    """The names of all partitions that this user may see.

    Raises ToolMissing without sinfo, Unreachable if the controller does not respond.
    """
    return list(dict.fromkeys(_sinfo("-o", "%R").split()))


def read_partition(partition: str) -> Partition:
    """Whether a partition takes and starts jobs, and how large they may be."""
    state, max_time, sizes = (_sinfo("-p", partition, "-o", "%a|%l|%s").split() or ["||"])[0].split(
        "|"
    )
    fewest, _, most = sizes.partition("-")
    return Partition(state=state, max_time=max_time, min_nodes=fewest, max_nodes=most or fewest)


def parse_nodes(text: str) -> list[SlurmNode]:
    """sinfo's rows; a node that is in several partitions once."""
    nodes: dict[str, SlurmNode] = {}
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|", _COLUMNS - 1)]
        if len(cells) == _COLUMNS:
            node = _node(cells)
            nodes.setdefault(node.name, node)
    return list(nodes.values())


def allocation() -> str | None:
    """The node list of the job in which this process runs; None outside of jobs."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    return os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST")


def _node(cells: list[str]) -> SlurmNode:
    name, host, _, state, features, gres, cpus, _, _, reason = cells
    match = _STATE.match(state)
    base, flags = (match[1].lower(), match[2]) if match else (state.lower(), "")
    gpus = _gpus(gres)
    return SlurmNode(
        name=name,
        host=host or name,
        state=base,
        flags=flags,
        features=() if features in ("", _NULL) else tuple(features.split(",")),
        gpus=sum(gpus.values()),
        gpu_type="+".join(filter(None, gpus)),
        gpus_by_type=gpus,
        cpus=_count(cpus),
        reason="" if reason in ("none", _NULL) else reason,
    )


def _count(text: str) -> int:
    number = re.match("[0-9]{1,15}", text)  # `128+` for nodes that differ
    return int(number[0]) if number else 0


def _gpus(gres: str) -> dict[str, int]:
    """The number of GPUs of each type in a GRES text, such as `gpu:a100:4(S:0-1),gpu:v100:2`.

    A type may begin with a digit or be a number (`2080ti`, `3090`, `1g.10gb` of MIG).
    """
    counts: dict[str, int] = {}
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *parts = entry.strip().split(":")
        if kind != "gpu":
            continue
        parts = [part for part in parts if part != "no_consume"]
        has_count = bool(parts) and re.fullmatch("[0-9]{1,9}", parts[-1]) is not None
        count = int(parts.pop()) if has_count else 1
        gpu_type = ":".join(parts)
        counts[gpu_type] = counts.get(gpu_type, 0) + count
    return counts


def _sinfo(*options: str) -> str:
    return run_slurm(["sinfo", "-h", *options], lambda message: Unreachable(f"sinfo: {message}."))
