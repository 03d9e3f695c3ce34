"""What an administrator's machine says -> the values of a first lab.yml and nodes.yml. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.adapters import clustershell
from provision.adapters.slurm.nodes import SlurmNode
from provision.core.credentials import without_credentials

NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What was seen. nodes: of Slurm; empty without it. mirrors: names and addresses, with the file
    or tool that says so. scratch: folders that look made for large files. keys: this host's own
    public ssh keys."""

    host: str
    nodes: tuple[SlurmNode, ...] = ()
    mirrors: tuple[tuple[str, str, str], ...] = ()
    scratch: tuple[Path, ...] = ()
    keys: tuple[str, ...] = ()
    umask: int = 0o22


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """The nodes of a partition. kinds: their kinds of node, in words."""

    name: str
    partition: str
    kinds: tuple[str, ...]


def node_groups(nodes: Sequence[SlurmNode]) -> tuple[NodeGroup, ...]:
    """A group for each partition."""
    partitions: dict[str, list[SlurmNode]] = {}
    for node in nodes:
        for partition in node.partitions:
            partitions.setdefault(partition, []).append(node)
    groups = []
    for partition, members in partitions.items():
        kinds: dict[str, list[str]] = {}
        for node in members:
            kinds.setdefault(_kind(node), []).append(node.name)
        texts = [f"{clustershell.fold(names)}: {kind}" for kind, names in kinds.items()]
        name = NAME.sub("-", partition)
        groups.append(NodeGroup(name=name, partition=partition, kinds=tuple(texts)))
    return tuple(groups)


def _kind(node: SlurmNode) -> str:
    """`2 x a100, 64 cores, features nvlink`."""
    gpus = f"{node.gpus} x {node.gpu_type or 'GPU'}" if node.gpus else "no GPU"
    text = f"{gpus}, {node.cpus} cores"
    return f"{text}, features {','.join(node.features)}" if node.features else text


def largest_group(groups: Sequence[NodeGroup], nodes: Sequence[SlurmNode]) -> NodeGroup | None:
    """The group with the most GPUs, where a first job fits best."""

    def gpus(group: NodeGroup) -> int:
        return sum(node.gpus for node in nodes if group.partition in node.partitions)

    return max(groups, key=gpus, default=None)


def lab_values(
    facts: MachineFacts, name: str, contact: str, environments: Sequence[str]
) -> Mapping[str, object]:
    """The values of templates/lab.yml.j2."""
    groups = node_groups(facts.nodes)
    mirrors = []
    for mirror, address, origin in facts.mirrors:
        public = without_credentials(address)
        if public != address:
            origin += ", without its credential: docs/mirrors.md says where members put theirs"
        mirrors.append({"setting": f"{mirror}={public}", "origin": origin})
    return {
        "name": NAME.sub("-", name).strip("-.") or "lab",
        "contact": contact,
        "host": facts.host,
        "group": largest_group(groups, facts.nodes),
        "groups": groups,
        "scratch": str(facts.scratch[0]) if facts.scratch else "",
        "mirrors": mirrors,
        "environments": environments,
        "has_keys": bool(facts.keys),
        "umask": f"{facts.umask:03o}",
    }


def inventory_values(facts: MachineFacts) -> Mapping[str, object]:
    """The values of templates/nodes.yml.j2."""
    return {"groups": node_groups(facts.nodes)}


def known_hosts_text(facts: MachineFacts) -> str:
    """This host's keys, as ~/.ssh/known_hosts has them."""
    names = [facts.host]
    short = facts.host.partition(".")[0]
    if short != facts.host:
        names.append(short)
    lines = [f"{','.join(names)} {' '.join(key.split()[:2])}" for key in facts.keys]
    return "".join(f"{line}\n" for line in sorted(lines))
