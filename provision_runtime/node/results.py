"""What the actions return, and the ranks that they run, by type. provision/schemas/node-reply.schema.json checks the same on the
host, which reads them under these types.
"""

from __future__ import annotations

from typing import Any, Mapping, TypedDict

# Texts by name: of a run that changes a store, of the lab's rules, of a signature, of variables.
Texts = Mapping[str, str]
# Why `store-remove` leaves an environment.
IS_ACTIVE = "it is active (--force removes it too)"
# The store's folder for metrics, where the health check writes NAME-health.prom.
METRICS = "metrics"
# Before the name of a setting of NCCL among the facts of drift.
SETTING = "setting:"


class Failure(TypedDict):
    """reason: a key of provision/cluster/failures.py."""

    reason: str
    message: str


class Host(TypedDict):
    """addresses: of the host's name; empty if it does not resolve. Ranks on other nodes cannot reach
    a loopback address."""

    name: str
    addresses: list[str]
    is_loopback: bool


class System(TypedDict):
    """glibc: None if the C library is another one."""

    arch: str
    kernel: str
    glibc: str | None
    os: str | None


class StoreFacts(TypedDict):
    """The file system of a store. existing: the nearest folder that exists. free_inodes: None where
    inodes are made as needed. problem: why writing fails, or who else could write or cannot read."""

    path: str
    existing: str
    free_bytes: int
    free_inodes: int | None
    is_executable: bool
    type: str | None
    source: str | None
    is_network: bool
    problem: Failure | None


class Gpus(TypedDict):
    """devices: names, as nvidia-smi lists them. on_bus: how many NVIDIA GPUs the PCI bus has, whatever the driver lists. problem: why
    nvidia-smi lists none or fewer."""

    driver: str | None
    devices: list[str]
    on_bus: int
    problem: str | None


class NodeEnvironment(TypedDict):
    """key: of the active environment. problem: why this user cannot start it."""

    key: str | None
    problem: Failure | None


class FitnessFacts(TypedDict, total=False):
    """What decides whether a node can store and run environments. unread: the reason for each fact
    that could not be read. methods: those that can install a squashfs image."""

    host: Host
    system: System
    store: StoreFacts
    gpus: Gpus
    methods: list[str]
    environment: NodeEnvironment
    unread: dict[str, str]
    time: float


class StoreStatus(FitnessFacts):
    """What a store has of an image. active: the key of the active environment. installed: the method
    by which this image was installed. received: bytes of it. addresses: of this node, for others."""

    active: str | None
    verified: bool
    installed: str | None
    note: str
    received: int
    addresses: list[str]


class StoredEnvironment(TypedDict):
    """state: active; installed; unmounted: it was installed, and is not there; staged: its image only.
    last_read: Unix time, of the image or of the tree's Python; file systems may note it late.
    processes: those in it that this user may see."""

    name: str
    key: str
    state: str
    method: str | None
    image_bytes: int
    tree_bytes: int
    last_read: float
    processes: int


class StoreContents(TypedDict):
    """unfinished_bytes: of images on their way."""

    environments: list[StoredEnvironment]
    unfinished_bytes: int
    free_bytes: int
    total_bytes: int


class StoreLog(TypedDict):
    """events: with at, event, run, by, client, name, key and others."""

    events: list[dict[str, Any]]


class RemovedEnvironments(TypedDict):
    """Keys. retained: why each of them stays."""

    removed: list[str]
    retained: dict[str, str]


class History(TypedDict):
    """Keys of environments."""

    active: str | None
    previous: str | None
    installed: list[str]


class Installation(TypedDict, total=False):
    """note: why other users cannot start the environment, where that is no failure. ends_at_boot:
    nothing mounts it again after a restart."""

    method: str
    is_new: bool
    note: str
    ends_at_boot: bool


class Activation(TypedDict):
    """removed: keys of older environments; in_use: those that stay because processes use them."""

    active: str
    previous: str | None
    removed: list[str]
    in_use: list[str]


class DriftFacts(TypedDict):
    facts: dict[str, str | float | None]
    unread: dict[str, str]


class Distributions(TypedDict):
    """files: the digest of all files. environment: the key. distributions: name -> version, digest."""

    files: str
    environment: str
    distributions: dict[str, list[str]]


class Prepared(TypedDict):
    """The Python of the environment, how other nodes reach this one, and what its ranks may use."""

    python: str
    host: str
    address: str
    port: int
    gpus: int


class Assignment(TypedDict):
    """What smoke-run takes: the ranks of a node. address and port: of rank 0's node."""

    python: str
    first_rank: int
    ranks: int
    world_size: int
    address: str
    port: int


class RankFinding(TypedDict, total=False):
    """A finding in the last state of a rank."""

    id: str
    verdict: str
    ranks: list[int]
    message: str
    advice: str


class RankPosition(TypedDict):
    phase: str


class RankOutcome(TypedDict):
    findings: list[RankFinding]


class RankEnd(TypedDict):
    """What a rank writes before it ends."""

    rank: int
    position: RankPosition
    outcome: RankOutcome


class RanksResult(TypedDict):
    """statuses: exit statuses by rank. ended_because: empty if the ranks ended by themselves. report:
    has a schema of its own."""

    statuses: dict[str, int]
    ended_because: str
    report: dict[str, Any] | None
    states: dict[str, RankEnd | None]
    logs: dict[str, str]


class JobOnHost(TypedDict):
    id: str
    node: int
    state: str
    status: int | None


class HostJobs(TypedDict):
    jobs: list[JobOnHost]


class JobRanks(TypedDict):
    """snapshots: as provision_runtime/hang/model.py has them."""

    snapshots: list[dict[str, Any]]


class HostLog(TypedDict):
    """end: of what was read, in bytes of the file."""

    node: int
    text: str
    end: int
    state: str


class HostLogs(TypedDict):
    logs: list[HostLog]
