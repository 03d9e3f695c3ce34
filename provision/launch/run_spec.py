"""What an environment requires to run, each requirement with its reason, and the options of Docker
that provide it; and Jupyter in a container. Pure. `contract` says the same to other engines.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from packaging.utils import canonicalize_name

from provision.core.container import PYTHON, STACK, WORKSPACE
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.types import Lock, Resolution

SHM_GIB = 8

_MOUNT = re.compile(r"(/[^:,\s]*|[A-Za-z0-9][A-Za-z0-9_.-]*):(/[^:,\s]*)(?::(ro|rw))?")
_USER = re.compile(r"\d+:\d+")


Need = Literal["gpus", "init", "shm", "stack", "memlock", "infiniband", "network"]


@frozen
class RunRequirement:
    """Something that the image requires. docker: the options of `docker run` that provide it."""

    what: Need
    docker: tuple[str, ...]
    reason: str


@frozen
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


@frozen
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


NO_OPTIONS = RunOptions()


def parse_mount(text: str) -> ContainerMount:
    """/on/the/host:/in/the/container[:ro], or a volume's name instead of the host's folder;
    otherwise InvalidSpec."""
    match = _MOUNT.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not a mount.",
            advice="Write /on/the/host:/in/the/container, with :ro for read-only, and paths without "
            "spaces, commas and colons.",
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
    resolution: Resolution, options: RunOptions = NO_OPTIONS
) -> tuple[RunRequirement, ...]:
    """The image's requirements, in the order in which they are printed."""
    has_infiniband = resolution.spec.infiniband
    uses_gpus = resolution.cuda is not None and options.gpus != 0
    gpus = "all" if options.gpus is None else str(options.gpus)
    rows: tuple[tuple[Need, bool, tuple[str, ...], str], ...] = (
        ("gpus", uses_gpus, ("--gpus", gpus), "the environment is built for CUDA"),
        ("init", True, ("--init",), "reaps DataLoader workers and passes signals on"),
        (
            "shm",
            True,
            (f"--shm-size={options.shm_gib or SHM_GIB}g",),
            "DataLoader and NCCL share memory there; the default is 64 MB",
        ),
        (
            "stack",
            True,
            ("--ulimit", f"stack={STACK}"),
            "64 MiB of stack for threads of compiled code",
        ),
        (
            "memlock",
            uses_gpus,
            ("--ulimit", "memlock=-1"),
            "pinned memory for GPU and InfiniBand transfers",
        ),
        (
            "infiniband",
            has_infiniband,
            ("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"),
            "InfiniBand or RoCE: the adapters' device files, and memory that they may lock",
        ),
        (
            "network",
            options.host_network or has_infiniband,
            ("--network", "host"),
            "ranks on several hosts reach each other at the hosts' own addresses",
        ),
    )
    return tuple(
        RunRequirement(what=what, docker=arguments, reason=reason)
        for what, is_required, arguments, reason in rows
        if is_required
    )


def docker_arguments(
    resolution: Resolution, options: RunOptions = NO_OPTIONS, *, without: Sequence[str] = ()
) -> list[str]:
    """The options of `docker run`. without: requirements that cannot be met where it runs."""
    arguments: list[str] = []
    for requirement in run_requirements(resolution, options):
        if requirement.what not in without:
            arguments += requirement.docker
    if options.user:
        arguments += ["--user", options.user]
    for mount in options.mounts:
        # Not --volume, for which an engine makes a folder that it does not have.
        kind = "volume" if mount.is_volume else "bind"
        fields = [f"type={kind}", f"source={mount.source}", f"target={mount.target}"]
        row = io.StringIO()  # Docker reads one of CSV
        csv.writer(row).writerow(fields + ["readonly"] * (mount.mode == "ro"))
        arguments += ["--mount", row.getvalue().removesuffix("\r\n")]
    return arguments


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


@frozen
class NotebookServer:
    """Jupyter in a container, with a token, on this machine's loopback address.

    In its own network it listens on every address, because a published port arrives at any of them,
    and only what is published can be reached. In the host's network nothing protects it.
    """

    module: str
    page: str
    port: int

    def flags(self, *, host_network: bool) -> list[str]:
        """Options of `docker run`; docker takes the token from its own environment."""
        published = [] if host_network else ["--publish", f"{LOOPBACK}:{self.port}:{self.port}"]
        return ["--env", TOKEN_VARIABLE, *published]

    def command(self, *, host_network: bool) -> list[str]:
        return [
            PYTHON,
            "-m",
            self.module,
            f"--ServerApp.ip={LOOPBACK if host_network else '0.0.0.0'}",
            f"--ServerApp.port={self.port}",
            "--no-browser",
            "--ServerApp.port_retries=0",
            "--ServerApp.answer_yes=True",  # Ctrl-C stops it without a question
            "--allow-root",  # in the container; a rootless engine maps root to this user
            f"--ServerApp.root_dir={WORKSPACE}",
        ]

    def url(self, token: str) -> str:
        return f"http://{LOOPBACK}:{self.port}/{self.page}?token={token}"


def find_notebook_server(lock: Lock, port: int) -> NotebookServer:
    """The server that an environment contains. InvalidSpec if it contains none."""
    locked_names = {canonicalize_name(package.name) for package in lock.packages}
    for package, (module, page) in NOTEBOOK_SERVERS.items():
        if package in locked_names:
            return NotebookServer(module=module, page=page, port=port)
    raise InvalidSpec(
        f"{lock.path} has none of {', '.join(NOTEBOOK_SERVERS)}: nothing in the image serves "
        "notebooks.",
        advice="Add one: `provision build NAME --pip jupyterlab --relock`.",
    )
