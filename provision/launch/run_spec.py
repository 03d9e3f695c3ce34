"""What an environment requires to run, each requirement with its reason, and the options of Docker
that provide it; and Jupyter in a container. Pure. `contract` says the same to other engines.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.utils import canonicalize_name

from provision.core.container import PYTHON, STACK, WORKSPACE
from provision.core.errors import InvalidSpec
from provision.core.types import Lock, Resolution

SHM_GIB = 8

_MOUNT = re.compile(r"(/[^:,\s]*|[A-Za-z0-9][A-Za-z0-9_.-]*):(/[^:,\s]*)(?::(ro|rw))?")
_USER = re.compile(r"\d+:\d+")


@dataclass(frozen=True, kw_only=True)
class RunRequirement:
    """Something that the image requires. docker: the options of `docker run` that provide it."""

    what: Literal["gpus", "init", "shm", "stack", "memlock", "infiniband", "network"]
    docker: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class ContainerMount:
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

    gpus: how many; None: all. shm_gib: shared memory instead of SHM_GIB. user: uid:gid instead of
    the image's. reference: the image's name where it runs.
    """

    gpus: int | None = None
    shm_gib: int | None = None
    host_network: bool = False
    mounts: tuple[ContainerMount, ...] = ()
    user: str | None = None
    reference: str | None = None


def parse_mount(text: str) -> ContainerMount:
    """/on/the/host:/in/the/container[:ro], or a volume's name instead of the host's folder;
    otherwise InvalidSpec."""
    match = _MOUNT.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not a mount.",
            advice="Write /on/the/host:/in/the/container, with :ro for read-only; no commas.",
        )
    return ContainerMount(source=match[1], target=match[2], mode="ro" if match[3] == "ro" else "rw")


def parse_user(text: str) -> str:
    """uid:gid, or InvalidSpec."""
    if not _USER.fullmatch(text):
        raise InvalidSpec(
            f"{text!r} is not a user.",
            advice="Write uid:gid in numbers, for example $(id -u):$(id -g).",
        )
    return text


def run_requirements(
    resolution: Resolution, options: RunOptions = RunOptions()
) -> tuple[RunRequirement, ...]:
    """The image's requirements, in the order in which they are printed."""
    shm_gib = options.shm_gib or SHM_GIB
    requirements = []
    uses_gpus = resolution.cuda is not None and options.gpus != 0
    if uses_gpus:
        requirements.append(
            RunRequirement(
                what="gpus",
                docker=("--gpus", "all" if options.gpus is None else str(options.gpus)),
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
    if uses_gpus:
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


# Jupyter

# jupyter_server reads the token from the environment; every user of the machine could read a
# command line.
TOKEN_VARIABLE = "JUPYTER_TOKEN"
LOOPBACK = "127.0.0.1"
PORT_MAX = 65535
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
            "--ServerApp.answer_yes=True",  # Ctrl-C stops it without a question
            "--allow-root",  # in the container; a rootless engine maps root to this user
            f"--ServerApp.root_dir={WORKSPACE}",
        ]

    def url(self, token: str) -> str:
        address = LOOPBACK if ipaddress.ip_address(self.address).is_unspecified else self.address
        return f"http://{_bracketed(address)}:{self.port}/{self.page}?token={token}"


def find_notebook_server(lock: Lock, endpoint: str) -> NotebookServer:
    """The server that an environment contains, at [ADDRESS:]PORT. InvalidSpec if it contains none,
    or for an invalid address or port."""
    address, _, port = endpoint.rpartition(":")
    address = address.removeprefix("[").removesuffix("]") or LOOPBACK
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise InvalidSpec(
            f"{address!r} is not an IP address.",
            advice="Write a numeric address: 127.0.0.1, or 0.0.0.0 for all.",
        ) from error
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= PORT_MAX):
        raise InvalidSpec(f"{port!r} is not a port.", advice=f"Write a number up to {PORT_MAX}.")
    locked_names = {canonicalize_name(package.name) for package in lock.packages}
    for package, (module, page) in NOTEBOOK_SERVERS.items():
        if package in locked_names:
            return NotebookServer(module=module, page=page, port=int(port), address=address)
    raise InvalidSpec(
        f"{lock.path} has none of {', '.join(NOTEBOOK_SERVERS)}: nothing in the image serves "
        "notebooks.",
        advice="Add one: `provision build NAME --pip jupyterlab --relock`.",
    )


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
