"""`--on` and nodes.yml -> the nodes that are meant, each with all its names.

provision/schemas/nodes.schema.json defines the keys of nodes.yml, and docs/cluster.md describes it.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit

from provision.adapters import ansible, clustershell
from provision.adapters.kubernetes import nodes as kubernetes_nodes
from provision.adapters.kubernetes.nodes import KubernetesNode
from provision.adapters.slurm import nodes as slurm_nodes
from provision.core.checked_yaml import Mistake, read_checked_yaml
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.paths import INVENTORY
from provision.core.yaml_text import YamlLines

Engine = Literal["ssh", "slurm", "kubernetes", "local", "exec"]
LOCAL = "local"
DEFAULT_PATH = PurePosixPath("/opt/provision")
_ADVICE = "docs/cluster.md describes nodes.yml, with an example."
_FORMS = (
    "--on takes a group of nodes.yml, a node set like `n[1-4]`, `@group` of ClusterShell, "
    "`slurm:PARTITION`, `k8s:SELECTOR`, `ssh:HOST,...` or `local`."
)


@frozen
class Node:
    """A node: what we print as its name, and how it is reached.

    host: the machine's own name, where the engine lists another one. address: what ssh connects to.
    state: the engine's own word, e.g. `drained`; responds: False if the engine lists the node as
    down. gpus: as the engine counts them, None if it does not. partition: of Slurm, where the node
    comes from; context: of kubectl. rack, zone: where it stands. kubernetes: what the API server
    lists of the node.
    """

    name: str
    engine: Engine
    address: str
    host: str = ""
    state: str = ""
    reason: str = ""
    responds: bool = True
    features: tuple[str, ...] = ()
    gpus: int | None = None
    gpu_type: str = ""
    partition: str = ""
    context: str = ""
    rack: str = ""
    zone: str = ""
    kubernetes: KubernetesNode | None = field(default=None, compare=False)

    @property
    def ssh_host(self) -> str:
        """What ssh connects to, without user and port."""
        if self.address.startswith("ssh://"):
            return urlsplit(self.address).hostname or ""
        return self.address.rpartition("@")[2]

    @property
    def names(self) -> list[str]:
        """All names under which `--on` finds the node."""
        return [self.name, self.host] if self.host else [self.name]


Nodes = Sequence[Node]


@frozen
class NodeDefaults:
    """How provision works on nodes.

    path: of the store there. trusted_group: whose members may write to it. readers: who starts what
    is in it, `all`, `group:NAME` or `me`; empty: all where root ships, else the account that ships.
    queue_s: how long a smoke test waits for Slurm to free nodes. drain_max: it drains none if more are
    bad. via: how commands reach Slurm nodes. python: the command of Python 3.8 or newer on them.
    allocated, srun_options: the nodes of a Slurm job other than the one that this process runs in,
    and the options that start steps in it.
    """

    path: PurePosixPath = DEFAULT_PATH
    store: Literal["local", "shared"] = "local"
    trusted_group: str = ""
    readers: str = ""
    fanout: int = 64
    connect_s: float = 10
    queue_s: float = 600
    drain_max: int = 1
    python: str = "python3"
    via: Literal["ssh", "srun"] = "ssh"
    ssh_options: tuple[str, ...] = ()
    allocated: str = ""
    srun_options: tuple[str, ...] = ()

    @property
    def rules(self) -> dict[str, str]:
        """What nodes are told of their stores."""
        return {"trusted_group": self.trusted_group, "readers": self.readers}


@frozen
class NodeSelection:
    """What `--on` selects. text: as it was given. inventory: what `--inventory` named."""

    text: str
    nodes: tuple[Node, ...]
    defaults: NodeDefaults = field(default_factory=NodeDefaults)
    inventory: Path | None = None

    def options(self, names: Collection[str] | None = None) -> str:
        """What a command, as a shell reads it, needs to select the same nodes, or some of them."""
        tokens = ["--on", self.text if names is None else self.part(names)]
        if self.inventory is not None:
            tokens += ["--inventory", str(self.inventory)]
        return shlex.join(tokens)

    def part(self, names: Collection[str]) -> str:
        """What `--on` takes for some of these nodes. Plain hosts are their names; others are reached by
        what their engine or inventory knows of them."""
        if self.text == LOCAL:
            return LOCAL
        folded = clustershell.fold(names)
        members = [node for node in self.nodes if node.name in names]
        if all(node.engine == "ssh" and node.address == node.name for node in members):
            return folded
        return f"{self.text}&{folded}"


# A group of nodes.yml, which nodes.schema.json checks.
Group = TypedDict(
    "Group",
    {
        "from": str,
        "partition": str,
        "features": str | list[str],
        "selector": str,
        "context": str,
        "group": str,
        "hosts": str,
        "inventory": str,
        "rack": str,
        "zone": str,
    },
    total=False,
)


@frozen
class Inventory:
    """A lab's nodes.yml. groups: their definitions by name."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    defaults: NodeDefaults = field(default_factory=NodeDefaults)


def find_inventory(envs: Path, explicit: Path | None = None) -> Path | None:
    """The nodes.yml to read: the one that was named, else the one next to the envs folder."""
    if explicit is not None:
        return explicit
    default = envs.parent / INVENTORY
    return default if default.exists() else None


def select_nodes(on: str, inventory: Path | None = None) -> NodeSelection:
    """The nodes that `--on` means, without repetition, in its order.

    Raises InvalidSpec for a text that is no node set, an unknown group or partition, or no node at
    all, and what sinfo and kubectl may raise.
    """
    lab = read_inventory(inventory) if inventory else Inventory()
    text = on.strip()
    prefix, colon, rest = text.partition(":")
    if text == LOCAL:
        nodes = [Node(name=LOCAL, host=socket.gethostname(), engine="local", address="")]
    elif colon and prefix == "ssh":
        nodes = _named_nodes("ssh", rest)
    elif colon and prefix == "exec":
        nodes = _named_nodes("exec", rest)
    elif colon and prefix == "k8s":
        nodes = _kubernetes_nodes(rest)
    else:
        nodes = _nodes_of_node_set(text, lab)
    distinct: dict[str, Node] = {}
    for node in nodes:
        distinct.setdefault(node.name, node)
    if not distinct:
        raise InvalidSpec(f"--on `{on}` selects no node.", advice=_groups_advice(lab))
    return NodeSelection(text=on, nodes=tuple(distinct.values()), defaults=lab.defaults)


def read_inventory(path: Path) -> Inventory:
    """A nodes.yml. Raises InvalidSpec with all its mistakes, each with its line."""
    document = read_checked_yaml(path, "nodes", further=_readers_mistake, advice=_ADVICE)
    defaults = dict(document.get("defaults", {}))
    if "path" in defaults:
        defaults["path"] = PurePosixPath(defaults["path"])
    defaults["ssh_options"] = tuple(defaults.get("ssh_options", ()))
    groups: dict[str, Group] = document.get("groups", {})
    for group in groups.values():
        if "inventory" in group:  # relative to this file
            group["inventory"] = str(path.absolute().parent / Path(group["inventory"]).expanduser())
    return Inventory(groups=groups, defaults=NodeDefaults(**defaults))


def _readers_mistake(document: Mapping[str, Any], lines: YamlLines) -> Iterator[Mistake]:
    defaults = document.get("defaults", {})
    trusted, readers = defaults.get("trusted_group"), defaults.get("readers", "all")
    if trusted and readers not in ("all", f"group:{trusted}"):
        line = lines.line(("defaults", "readers"))
        yield line, f"`readers: {readers}` leaves out members of `trusted_group`."


def _nodes_of_node_set(text: str, lab: Inventory) -> list[Node]:
    """A node set in which groups of nodes.yml and `slurm:PARTITION` may stand for their nodes."""
    nodes_by_name: dict[str, Node] = {}

    def replace(match: re.Match[str]) -> str:
        operand = match[0]
        group = lab.groups.get(operand.removeprefix("@"))
        if group is not None:
            rack, zone = group.get("rack"), group.get("zone")
            nodes = [
                dataclasses.replace(node, rack=rack or node.rack, zone=zone or node.zone)
                for node in _nodes_of_group(group)
            ]
        elif operand.startswith("slurm:") and operand != "slurm:":
            nodes = _slurm_nodes(operand.removeprefix("slurm:"))
        elif operand.startswith("@"):
            nodes = _named_nodes("ssh", operand)
        elif operand == LOCAL or operand.count(":") == 1:
            raise InvalidSpec(
                f"`{operand}` cannot be part of --on `{text}`.", advice=_groups_advice(lab)
            )
        else:
            return operand
        if not nodes:
            raise InvalidSpec(f"`{operand}` has no nodes.", advice=_groups_advice(lab))
        for node in nodes:
            nodes_by_name.setdefault(node.name, node)
        return clustershell.fold([node.name for node in nodes])

    names = clustershell.expand(clustershell.OPERAND.sub(replace, text))
    by_name = {
        **_ansible_hosts(lab, set(names) - nodes_by_name.keys()),
        **_nodes_by_all_names(nodes_by_name.values()),
    }
    return [by_name.get(name) or Node(name=name, engine="ssh", address=name) for name in names]


def _nodes_by_all_names(nodes: Collection[Node]) -> dict[str, Node]:
    """Each node by its own name and by the others that its engine knows.

    Where several have a name, the later rule decides: a host whose name Slurm knows is the Slurm node,
    and a node's own name is its own.
    """
    hosts = {node.name: node for node in nodes if node.engine == "ssh"}
    of_slurm = [node for node in nodes if node.engine == "slurm"]
    of_engines = [node for node in nodes if node.engine != "ssh"]
    return {
        **{name: node for node in of_engines for name in node.names},
        **hosts,
        **{name: node for node in of_slurm for name in node.names},
        **{node.name: node for node in of_engines},
    }


def _nodes_of_group(group: Group) -> list[Node]:
    if group["from"] == "slurm":
        features = group.get("features", [])
        features = [features] if isinstance(features, str) else features
        return _slurm_nodes(group["partition"], features)
    if group["from"] == "kubernetes":
        return _kubernetes_nodes(group.get("selector", ""), group.get("context", ""))
    if group["from"] == "ansible":
        return _ansible_nodes(Path(group["inventory"]), group.get("group", "all"))
    if group["from"] == "clustershell":
        return _named_nodes("ssh", "@" + group["group"].removeprefix("@"))
    return _named_nodes("ssh", group["hosts"])


def _slurm_nodes(partition: str, features: Sequence[str] = ()) -> list[Node]:
    return [
        Node(
            name=item.name,
            host=item.host,
            engine="slurm",
            address=item.host,
            state=item.state + item.flags,
            reason=item.reason,
            responds=item.responds,
            features=item.features,
            gpus=item.gpus,
            gpu_type=item.gpu_type,
            partition=partition,
            rack=_location(item.features, "rack"),
            zone=_location(item.features, "zone"),
        )
        for item in slurm_nodes.list_nodes(partition)
        if set(features) <= set(item.features)
    ]


def _kubernetes_nodes(selector: str, context: str = "") -> list[Node]:
    return [
        Node(
            name=item.name,
            host=item.host,
            engine="kubernetes",
            address=item.name,
            state=item.state,
            responds=item.state.startswith("Ready"),
            gpus=item.gpus,
            gpu_type=item.gpu_type,
            context=context,
            rack=item.rack,
            zone=item.zone,
            kubernetes=item,
        )
        for item in kubernetes_nodes.list_nodes(selector, context)
    ]


def _location(features: Sequence[str], kind: str) -> str:
    """Where a node stands by its features in Slurm: rack7, zone=b."""
    pattern = re.compile(kind + r"[:=_-]?([A-Za-z0-9][A-Za-z0-9_.-]*)")
    matches = filter(None, map(pattern.fullmatch, features))
    return next((match[1] for match in matches), "")


def _ansible_nodes(path: Path, group: str) -> list[Node]:
    hosts = ansible.hosts_of_group(ansible.read_inventory(path), group, path)
    return [Node(engine="ssh", **host) for host in hosts]


def _ansible_hosts(lab: Inventory, names: Collection[str]) -> dict[str, Node]:
    """Those of the names that are hosts in an inventory of Ansible which the lab names."""
    paths = {group["inventory"] for group in lab.groups.values() if group["from"] == "ansible"}
    hosts = {}
    for path in map(Path, sorted(paths) if names else ()):
        document = ansible.read_inventory(path)
        for name in ansible.host_names(document) & set(names):
            [hosts[name]] = _ansible_nodes(path, name)
    return hosts


def _named_nodes(engine: Engine, text: str) -> list[Node]:
    return [Node(name=name, engine=engine, address=name) for name in clustershell.expand(text)]


def _groups_advice(lab: Inventory) -> str:
    if not lab.groups:
        return _FORMS
    return f"Groups of nodes.yml: {', '.join(sorted(lab.groups))}. {_FORMS}"
