"""The Docker engine, through its SDK: the only module that imports docker.

Callers get a client from `engine()` and hand it back; what goes wrong on the way to the engine becomes one of our errors.
The SDK carries no types of its own, so Any stays here and in what the client is handed to (loading, smoke).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from provision.core.errors import (
    IntegrityError,
    InUse,
    InvalidSpec,
    NoSpace,
    ProvisionError,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.core.types import Progress
from provision.image.archives import UNREADABLE
from provision.image.base_images import BaseImage, chosen_base
from provision.image.layers import PIECE, reading

T = TypeVar("T")
Client = Any  # docker.DockerClient

ANSWER_TIMEOUT_S = 1  # to find out that no engine answers
_DOCUMENT = 4 << 20  # no config or manifest is larger: registries take no more
CALL_TIMEOUT_S = 900.0  # between two signs of life; an engine that unpacks gigabytes on a slow disk is silent for minutes


def engine() -> tuple[Client, None] | tuple[None, str]:
    """A client of the engine behind DOCKER_HOST (or the usual socket), or None and why there is none; in a second."""
    import docker
    from docker.errors import DockerException

    try:
        client: Client = docker.from_env(timeout=ANSWER_TIMEOUT_S)
        client.ping()
    except (DockerException, OSError) as error:
        return None, _last_cause(error)
    client.api.timeout = CALL_TIMEOUT_S
    return client, None


def demand_engine(otherwise: str = "build with --no-image") -> Client:
    """A client, or ToolMissing. otherwise: what can be done without one."""
    client, reason = engine()
    if client is None:
        raise ToolMissing(
            f"No Docker engine answers: {reason}.",
            advice=f"Start it (or set DOCKER_HOST), or {otherwise}.",
        )
    return client


def cli_flags(environment: Mapping[str, str]) -> list[str]:
    """What makes the docker command speak to the engine that `engine` speaks to: it knows contexts, which the SDK does not read."""
    from docker.constants import DEFAULT_UNIX_SOCKET

    return (
        []
        if environment.get("DOCKER_HOST")
        else ["--host", DEFAULT_UNIX_SOCKET.removeprefix("http+")]
    )


def _last_cause(error: BaseException) -> str:
    """The innermost reason of an SDK error, without the repr of the exceptions around it."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


@contextmanager
def speaking(purpose: str) -> Iterator[None]:
    """Turn what the SDK raises while it does `purpose` into our errors."""
    import requests
    from docker.errors import APIError, DockerException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except APIError as error:
        raise _refused(purpose, str(error.explanation or error), error.status_code) from error
    except DockerException as error:
        raise _refused(purpose, str(error), None) from error
    except (
        requests.RequestException,
        HTTPError,
        ConnectionError,
    ) as error:  # HTTPError: within an answer that comes in pieces
        raise Unreachable(
            f"The Docker engine went away: could not {purpose}.",
            advice="See whether it runs (`docker info`) and run the same command again.",
            details=str(error),
        ) from error


def _refused(purpose: str, words: str, status: int | None) -> ProvisionError:
    if "no space left" in words.lower():
        advice = "Free space there (`docker system df`) and run the same command again."
        return NoSpace(
            f"The Docker engine's disk is full: could not {purpose}.", advice=advice, details=words
        )
    if status == 409:
        advice = "Remove the container (`docker ps -a` lists them) and run the same command again."
        return InUse(
            f"A container is in the way: could not {purpose}.", advice=advice, details=words
        )
    return ToolFailed(["docker", *purpose.split()], status or 1, words)


def found(call: Callable[[], T]) -> T | None:
    """What a call gives, or None where the engine says that there is no such thing."""
    from docker.errors import NotFound

    try:
        return call()
    except NotFound:
        return None


def get(client: Client, reference: str) -> Any:
    """The engine's image of that name or id, or None."""
    with speaking(f"look for {reference}"):
        return found(lambda: client.images.get(reference))


@dataclass(frozen=True)
class Login:
    """Who we are to a registry. user: empty where secret is a refresh token of OAuth2 ("identity token") instead of a password."""

    user: str
    secret: str


def login(registry: str) -> Login | None:
    """As `docker login` keeps it: in Docker's config file, or with a helper that it names."""
    from docker import auth

    with speaking(f"read Docker's credentials for {registry}"):
        kept = {
            key.lower(): value
            for key, value in (auth.load_config().resolve_authconfig(registry) or {}).items()
        }
    if kept.get("identitytoken"):
        return Login("", kept["identitytoken"])
    return (
        Login(kept["username"], kept["password"])
        if kept.get("username") and kept.get("password")
        else None
    )


def unmet(client: Client, reference: str) -> tuple[str, ...]:
    """The needs of contract.py that this engine cannot meet. ToolMissing where it does not have the image."""
    if get(client, reference) is None:
        advice = "`provision image build` makes it."
        raise ToolMissing(f"The image {reference} is not in the Docker engine.", advice=advice)
    with speaking("ask for its runtimes"):
        return () if "nvidia" in client.info().get("Runtimes", {}) else ("gpus", "memlock")


def wait(container: Any, timeout_s: float) -> int | None:
    """A container's exit status, or None if it still runs after timeout_s."""
    import requests

    started = time.monotonic()
    try:
        return int(container.wait(timeout=timeout_s)["StatusCode"])
    except requests.RequestException:
        if (
            time.monotonic() - started < timeout_s
        ):  # the connection broke, and not for want of patience
            raise
        return None


def find_base(client: Client, wanted: str | None, progress: Progress) -> BaseImage:
    """The base in the engine: the one named or the one we ship; pulled if need be. ToolMissing if it cannot be had."""
    reference = chosen_base(wanted)
    image = get(client, reference) or _pull(client, reference, progress)
    _check_platform(reference, image.attrs)
    identity: str = image.id
    return BaseImage(
        reference=reference,
        digest=_config_digest(client, identity),
        size=int(image.attrs["Size"]),
        diff_ids=tuple(image.attrs["RootFS"]["Layers"]),
        environment=tuple(image.attrs["Config"].get("Env") or ()),
        archive=lambda: _save(client, identity),
    )


def _config_digest(client: Client, identity: str) -> str:
    """The image id, as OCI has it: the same of a base that was pulled by us. With containerd's image store the engine calls
    an image by its manifest's digest, and only what it saves names the config."""
    with speaking("ask for its image store"):
        if not keeps_manifests(client.info()):
            return identity
    return config_of(_save(client, identity)) or identity


def keeps_manifests(info: Mapping[str, Any]) -> bool:
    """Whether an engine has containerd's image store, as Docker's manual has one find out (`docker info`, DriverStatus)."""
    return ["driver-type", "io.containerd.snapshotter.v1"] in [
        list(row) for row in info.get("DriverStatus") or ()
    ]


def config_of(archive: Iterable[bytes]) -> str | None:
    """The digest of the config of the image in an archive by `docker save`; None where it holds several, or does not say."""
    hashes, named = {}, None
    try:
        with reading(archive) as members:
            for member in members:
                file = (
                    members.extractfile(member)
                    if member.isreg() and member.size <= _DOCUMENT
                    else None
                )
                if file is not None:
                    content = file.read()
                    hashes[member.name] = f"sha256:{hashlib.sha256(content).hexdigest()}"
                    named = json.loads(content) if member.name == "manifest.json" else named
        return hashes.get(named[0]["Config"]) if named is not None and len(named) == 1 else None
    except (*UNREADABLE, LookupError, TypeError) as error:
        raise IntegrityError(
            f"What the engine saves is no archive of an image: {error}.",
            advice="Load or pull it again.",
        ) from error


def _pull(client: Client, reference: str, progress: Progress) -> Any:
    import requests
    from docker.errors import DockerException

    progress.say(f"pulling the base image {reference}")
    try:
        return client.images.pull(reference)
    except (DockerException, requests.RequestException) as error:
        raise ToolMissing(
            f"The base image {reference} is not in the Docker engine and could not be pulled.",
            advice="Name one that is there with --base, or bring one in with `docker pull`, `docker load` or `docker import`.",
            details=str(error),
        ) from error


def _check_platform(reference: str, attributes: dict[str, Any]) -> None:
    platform = f"{attributes['Os']}/{attributes['Architecture']}"
    if platform != "linux/amd64":
        raise InvalidSpec(
            f"The base image {reference} is for {platform}, but the environment's packages are for linux/amd64.",
            advice="Name a base of that platform with --base.",
        )


def _save(client: Client, identity: str) -> Iterator[bytes]:
    with speaking(f"save {identity}"):
        yield from client.images.get(identity).save(chunk_size=PIECE)
