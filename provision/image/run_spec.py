"""What an image wants of whoever runs it, each with its reason, and the same in the words of Docker, Compose, Slurm with Pyxis,
Kubernetes and development containers. All of it is pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from provision.core.errors import InvalidSpec
from provision.core.types import Resolution
from provision.image.conda_files import PYTHON, WORKSPACE
from provision.image.config import STACK, USER

Format = Literal["docker", "compose", "slurm-pyxis", "kubernetes", "devcontainer"]
FORMATS: tuple[Format, ...] = get_args(Format)
SHM_GIB = 8

_MOUNT = re.compile(r"(/[^:,\s]*|[A-Za-z0-9][A-Za-z0-9_.-]*):(/[^:,\s]*)(?::(ro|rw))?")
_USER = re.compile(r"\d+:\d+")
_CLAIM = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)  # RFC 1123, as Kubernetes wants for most names


@dataclass(frozen=True, kw_only=True)
class Need:
    """One thing that the image wants. docker: the flags of `docker run` that give it."""

    what: Literal["gpus", "init", "shm", "stack", "memlock", "infiniband", "network"]
    docker: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Mount:
    source: str
    target: str
    mode: Literal["ro", "rw"] = "rw"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a user may choose beyond what the environment needs. shm_gib: of shared memory, else SHM_GIB. reference: what the image is
    called where it runs. user: as uid:gid, where it is not to be the image's own."""

    shm_gib: int | None = None
    host_network: bool = False
    mounts: tuple[Mount, ...] = ()
    user: str | None = None
    reference: str | None = None


def mount(text: str) -> Mount:
    """/on/the/host:/in/the/container[:ro], or InvalidSpec. A name in place of the host's folder is a volume."""
    match = _MOUNT.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not a mount.",
            advice="Write /on/the/host:/in/the/container, with :ro for read-only; no commas.",
        )
    return Mount(source=match[1], target=match[2], mode="ro" if match[3] == "ro" else "rw")


def user(text: str) -> str:
    """uid:gid, or InvalidSpec."""
    if not _USER.fullmatch(text):
        raise InvalidSpec(
            f"{text!r} is not a user.",
            advice="Write uid:gid in numbers, for example $(id -u):$(id -g).",
        )
    return text


def check(format: Format, asked: Asked, command: Sequence[str] = ()) -> None:
    """InvalidSpec for what was asked for and cannot be had in that format, with the reason."""
    if format == "slurm-pyxis" and asked.user:
        raise InvalidSpec(
            "No user can be written for slurm-pyxis: enroot runs as whoever submits.",
            advice="Leave --user out.",
        )
    if format == "slurm-pyxis" and asked.shm_gib:
        raise InvalidSpec(
            "No size can be written for slurm-pyxis: /dev/shm is the host's.",
            advice="Leave --shm out.",
        )
    if format == "devcontainer" and command:
        raise InvalidSpec(
            "No command can be written for devcontainer: an editor starts what it needs.",
            advice="Leave it out.",
        )
    for mounted in asked.mounts:
        if reason := _unfit(format, mounted):
            raise InvalidSpec(
                f"The mount {_volume(mounted)} cannot be written for {format}: {reason}.",
                advice="Name another source.",
            )


def _unfit(format: Format, mounted: Mount) -> str:
    is_volume = not mounted.source.startswith("/")
    if format == "slurm-pyxis" and is_volume:
        return "Pyxis mounts folders of the host, and knows no volumes by name"
    if (
        format == "kubernetes"
        and is_volume
        and (not _CLAIM.fullmatch(mounted.source) or len(mounted.source) > 253)
    ):
        return "a claim's name has lower-case letters, digits, - and . alone"
    if format == "devcontainer" and "${" in _volume(mounted):
        return "development containers put a variable there, and know no way to write it"
    return ""


def needs(resolution: Resolution, asked: Asked = Asked()) -> tuple[Need, ...]:
    """In the order in which they are shown."""
    shm_gib = asked.shm_gib or SHM_GIB
    common = [
        Need(
            what="init", docker=("--init",), reason="reaps DataLoader workers and passes signals on"
        ),
        Need(
            what="shm",
            docker=(f"--shm-size={shm_gib}g",),
            reason="DataLoader and NCCL share memory there; the default is 64 MB",
        ),
        Need(
            what="stack",
            docker=("--ulimit", f"stack={STACK}"),
            reason="64 MiB of stack for threads of compiled code",
        ),
    ]
    if resolution.cuda is not None:
        common.insert(
            0,
            Need(what="gpus", docker=("--gpus", "all"), reason="the environment is built for CUDA"),
        )
        common.append(
            Need(
                what="memlock",
                docker=("--ulimit", "memlock=-1"),
                reason="pinned memory for GPU and InfiniBand transfers",
            )
        )
    if resolution.spec.infiniband:
        flags = ("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK")
        reason = "InfiniBand or RoCE: the adapters' device files, and memory that they may lock"
        common.append(Need(what="infiniband", docker=flags, reason=reason))
    if asked.host_network or resolution.spec.infiniband:
        reason = "ranks on several hosts reach each other at the hosts' own addresses"
        common.append(Need(what="network", docker=("--network", "host"), reason=reason))
    return tuple(common)


def docker_arguments(
    resolution: Resolution, asked: Asked = Asked(), *, without: Sequence[str] = ()
) -> list[str]:
    """The flags of `docker run`; without: needs that cannot be met where it runs."""
    wanted = [
        flag
        for need in needs(resolution, asked)
        if need.what not in without
        for flag in need.docker
    ]
    person = ["--user", asked.user] if asked.user else []
    return [
        *wanted,
        *person,
        *(word for mounted in asked.mounts for word in ("--volume", _volume(mounted))),
    ]


def run_command(
    resolution: Resolution, reference: str, command: Sequence[str] = (), asked: Asked = Asked()
) -> list[str]:
    """The whole `docker run` for a person to copy."""
    return [
        "docker",
        "run",
        "--rm",
        "-it",
        *docker_arguments(resolution, asked),
        asked.reference or reference,
        *command,
    ]


def context(
    resolution: Resolution, reference: str, command: Sequence[str], asked: Asked
) -> dict[str, Any]:
    """The values of the templates contract-*.j2."""
    wanted = {need.what: need for need in needs(resolution, asked)}
    uid, _, gid = (asked.user or USER).partition(":")
    return {
        "command": list(command),
        "default_command": [PYTHON],
        "docker": [(need.docker, need.reason) for need in wanted.values()],
        "flags": docker_arguments(resolution, asked),
        "gid": int(gid),
        "label": _label(resolution.spec.name),
        "mounts": [
            (mounted.source, mounted.target, mounted.mode, _volume(mounted))
            for mounted in asked.mounts
        ],
        "name": resolution.spec.name,
        "reason": {what: need.reason for what, need in wanted.items()},
        "reference": asked.reference or reference,
        "shm_gib": asked.shm_gib or SHM_GIB,
        "stack": STACK,
        "uid": int(uid),
        "user": asked.user,
        "volumes": sorted(
            {mounted.source for mounted in asked.mounts if not mounted.source.startswith("/")}
        ),
        "wants": {what: what in wanted for what in ("gpus", "infiniband", "memlock", "network")},
        "workspace": WORKSPACE,
    }


def _volume(mounted: Mount) -> str:
    return f"{mounted.source}:{mounted.target}" + (":ro" if mounted.mode == "ro" else "")


def _label(name: str) -> str:
    """A DNS label (RFC 1123), as Kubernetes wants for a container; also a good name for a Compose service."""
    return re.sub(r"[^a-z0-9-]+", "-", name)[:63].strip("-")
