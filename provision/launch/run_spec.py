"""What an image requires to run, each requirement with its reason, in the terms of Docker, Compose,
Slurm with Pyxis, Kubernetes and development containers; and Jupyter in a container. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from packaging.utils import canonicalize_name

from provision.core.container import PYTHON, STACK, USER, WORKSPACE
from provision.core.errors import InvalidSpec
from provision.core.types import Lock, Resolution

RunFormat = Literal["docker", "compose", "slurm-pyxis", "kubernetes", "devcontainer"]
RUN_FORMATS: tuple[RunFormat, ...] = get_args(RunFormat)
SHM_GIB = 8

_MOUNT = re.compile(r"(/[^:,\s]*|[A-Za-z0-9][A-Za-z0-9_.-]*):(/[^:,\s]*)(?::(ro|rw))?")
_USER = re.compile(r"\d+:\d+")
# RFC 1123, as Kubernetes requires for most names.
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_CLAIM_LENGTH = 253


@dataclass(frozen=True, kw_only=True)
class RunRequirement:
    """Something that the image requires. docker: the options of `docker run` that provide it."""

    what: Literal["gpus", "init", "shm", "stack", "memlock", "infiniband", "network"]
    docker: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Mount:
    """source: a host's folder, or the name of a volume."""

    source: str
    target: str
    mode: Literal["ro", "rw"] = "rw"

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.mode == "ro" else "")

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith("/")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a user may choose in addition to what the environment requires.

    shm_gib: shared memory instead of SHM_GIB. user: uid:gid instead of the image's. reference: the
    image's name where it runs.
    """

    shm_gib: int | None = None
    host_network: bool = False
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    reference: str | None = None


def parse_mount(text: str) -> Mount:
    """/on/the/host:/in/the/container[:ro], or a volume's name instead of the host's folder;
    otherwise InvalidSpec."""
    match = _MOUNT.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not a mount.",
            advice="Write /on/the/host:/in/the/container, with :ro for read-only; no commas.",
        )
    return Mount(source=match[1], target=match[2], mode="ro" if match[3] == "ro" else "rw")


def parse_user(text: str) -> str:
    """uid:gid, or InvalidSpec."""
    if not _USER.fullmatch(text):
        raise InvalidSpec(
            f"{text!r} is not a user.",
            advice="Write uid:gid in numbers, for example $(id -u):$(id -g).",
        )
    return text


def check_run_options(format: RunFormat, options: RunOptions, command: Sequence[str] = ()) -> None:
    """InvalidSpec for an option that the format cannot express."""
    if format == "slurm-pyxis" and options.user:
        raise InvalidSpec(
            "slurm-pyxis cannot set a user: enroot runs as the user who submits the job.",
            advice="Leave --user out.",
        )
    if format == "slurm-pyxis" and options.shm_gib:
        raise InvalidSpec(
            "slurm-pyxis cannot set the size of shared memory: /dev/shm is the host's.",
            advice="Leave --shm out.",
        )
    if format == "devcontainer" and command:
        raise InvalidSpec(
            "devcontainer cannot set a command: the editor starts what it needs.",
            advice="Leave the command out.",
        )
    for mount in options.mounts:
        problem = _mount_problem(format, mount)
        if problem:
            raise InvalidSpec(
                f"{format} cannot express the mount {mount}: {problem}.",
                advice="Choose another source.",
            )


def _mount_problem(format: RunFormat, mount: Mount) -> str:
    if format == "slurm-pyxis" and mount.is_volume:
        return "Pyxis mounts folders of the host, and has no named volumes"
    is_claim_name = _CLAIM.fullmatch(mount.source) and len(mount.source) <= _CLAIM_LENGTH
    if format == "kubernetes" and mount.is_volume and not is_claim_name:
        return "a claim's name has only lower-case letters, digits, - and ."
    if format == "devcontainer" and "${" in str(mount):
        return "development containers replace ${...} by a variable, and cannot escape it"
    return ""


def run_requirements(
    resolution: Resolution, options: RunOptions = RunOptions()
) -> tuple[RunRequirement, ...]:
    """The image's requirements, in the order in which they are printed."""
    shm_gib = options.shm_gib or SHM_GIB
    requirements = []
    if resolution.cuda is not None:
        requirements.append(
            RunRequirement(
                what="gpus",
                docker=("--gpus", "all"),
                reason="the environment is built for CUDA",
            )
        )
    requirements += [
        RunRequirement(
            what="init",
            docker=("--init",),
            reason="reaps DataLoader workers and passes signals on",
        ),
        RunRequirement(
            what="shm",
            docker=(f"--shm-size={shm_gib}g",),
            reason="DataLoader and NCCL share memory there; the default is 64 MB",
        ),
        RunRequirement(
            what="stack",
            docker=("--ulimit", f"stack={STACK}"),
            reason="64 MiB of stack for threads of compiled code",
        ),
    ]
    if resolution.cuda is not None:
        requirements.append(
            RunRequirement(
                what="memlock",
                docker=("--ulimit", "memlock=-1"),
                reason="pinned memory for GPU and InfiniBand transfers",
            )
        )
    if resolution.spec.infiniband:
        requirements.append(
            RunRequirement(
                what="infiniband",
                docker=("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"),
                reason="InfiniBand or RoCE: the adapters' device files, and memory that they may "
                "lock",
            )
        )
    if options.host_network or resolution.spec.infiniband:
        requirements.append(
            RunRequirement(
                what="network",
                docker=("--network", "host"),
                reason="ranks on several hosts reach each other at the hosts' own addresses",
            )
        )
    return tuple(requirements)


def docker_arguments(
    resolution: Resolution, options: RunOptions = RunOptions(), *, without: Sequence[str] = ()
) -> list[str]:
    """The options of `docker run`. without: requirements that cannot be met where it runs."""
    arguments: list[str] = []
    for requirement in run_requirements(resolution, options):
        if requirement.what not in without:
            arguments += requirement.docker
    if options.user:
        arguments += ["--user", options.user]
    for mount in options.mounts:
        arguments += ["--volume", str(mount)]
    return arguments


def run_command(
    resolution: Resolution,
    reference: str,
    command: Sequence[str] = (),
    options: RunOptions = RunOptions(),
) -> list[str]:
    """The complete `docker run` command, for a person to copy."""
    arguments = docker_arguments(resolution, options)
    image = options.reference or reference
    return ["docker", "run", "--rm", "-it", *arguments, image, *command]


def contract_context(
    resolution: Resolution, reference: str, command: Sequence[str], options: RunOptions
) -> dict[str, Any]:
    """The values of the templates contract-*.j2."""
    requirements = run_requirements(resolution, options)
    reasons = {requirement.what: requirement.reason for requirement in requirements}
    uid, _, gid = (options.user or USER).partition(":")
    mounts = [(mount.source, mount.target, mount.mode, str(mount)) for mount in options.mounts]
    return {
        "command": list(command),
        "default_command": [PYTHON],
        "docker": [(requirement.docker, requirement.reason) for requirement in requirements],
        "flags": docker_arguments(resolution, options),
        "gid": int(gid),
        "label": _dns_label(resolution.spec.name),
        "mounts": mounts,
        "name": resolution.spec.name,
        "reason": reasons,
        "reference": options.reference or reference,
        "shm_gib": options.shm_gib or SHM_GIB,
        "stack": STACK,
        "uid": int(uid),
        "user": options.user,
        "volumes": sorted({mount.source for mount in options.mounts if mount.is_volume}),
        "wants": {what: what in reasons for what in ("gpus", "infiniband", "memlock", "network")},
        "workspace": WORKSPACE,
    }


def _dns_label(name: str) -> str:
    """RFC 1123, as Kubernetes requires for a container; also a good name for a Compose service."""
    return re.sub(r"[^a-z0-9-]+", "-", name)[:63].strip("-")


# Jupyter

# jupyter_server reads the token from the environment; every user of the machine could read a
# command line.
TOKEN_VARIABLE = "JUPYTER_TOKEN"
LOOPBACK = "127.0.0.1"
# Packages that serve notebooks, the most convenient first, with the module to run and its page.
NOTEBOOK_SERVERS: Mapping[str, tuple[str, str]] = {
    "jupyterlab": ("jupyterlab", "lab"),
    "notebook": ("notebook", "tree"),
    "jupyter-server": ("jupyter_server", ""),
}


@dataclass(frozen=True, kw_only=True)
class NotebookServer:
    """Jupyter in a container, with a token.

    It is reached at `address` of the machine that runs the engine, which is loopback by default. In
    its own network it listens on every address, because a published port arrives at any of them,
    and only what is published can be reached. In the host's network nothing protects it, so it
    listens on `address` only.
    """

    module: str
    page: str
    port: int = 8888
    address: str = LOOPBACK

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach it."""
        return not ipaddress.ip_address(self.address).is_loopback

    def flags(self, *, host_network: bool) -> list[str]:
        """Options of `docker run`; docker takes the token from its own environment."""
        flags = ["--env", TOKEN_VARIABLE]
        if not host_network:
            flags += ["--publish", f"{_bracketed(self.address)}:{self.port}:{self.port}"]
        return flags

    def command(self, *, host_network: bool) -> list[str]:
        return [
            PYTHON,
            "-m",
            self.module,
            f"--ServerApp.ip={self.address if host_network else '0.0.0.0'}",
            f"--ServerApp.port={self.port}",
            "--no-browser",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={WORKSPACE}",
        ]

    def url(self, token: str) -> str:
        address = LOOPBACK if ipaddress.ip_address(self.address).is_unspecified else self.address
        return f"http://{_bracketed(address)}:{self.port}/{self.page}?token={token}"


def find_notebook_server(
    lock: Lock, *, port: int = 8888, address: str = LOOPBACK
) -> NotebookServer:
    """The server that an environment contains. InvalidSpec if it contains none, or for an invalid
    address."""
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise InvalidSpec(
            f"{address!r} is not an IP address.",
            advice="Write a numeric address: 127.0.0.1, or 0.0.0.0 for all.",
        ) from error
    locked_names = {canonicalize_name(package.name) for package in lock.packages}
    for package, (module, page) in NOTEBOOK_SERVERS.items():
        if package in locked_names:
            return NotebookServer(module=module, page=page, port=port, address=address)
    raise InvalidSpec(
        f"{lock.path} has none of {', '.join(NOTEBOOK_SERVERS)}: nothing in the image serves "
        "notebooks.",
        advice="Add one: `provision build NAME --pip jupyterlab --relock`.",
    )


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
