"""The door to the Docker engine: the only module that imports its SDK.

Callers get a client from `connect_engine()` and pass it back. Every failure on the way to the
engine becomes one of our errors. The SDK has no types, so a client is Any.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from provision.core.container import brief_reference
from provision.core.errors import (
    InUse,
    InvalidSpec,
    NoSpace,
    ProvisionError,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.core.json_text import parse_json
from provision.core.system_errors import require_space
from provision.core.types import Progress

T = TypeVar("T")
Client = Any  # docker.DockerClient

SOCKET = Path("/var/run/docker.sock")
# What an engine prints while it loads an archive.
_LOADED = r"Loaded image(?: ID)?: (\S+)"
_NOT_UNPACKED = r"Error unpacking image (\S+): "
PING_TIMEOUT_S = 1  # to find out that no engine responds
# Between two signs of life: an engine that unpacks gigabytes on a slow disk is silent for minutes.
CALL_TIMEOUT_S = 900.0


def _engine_socket() -> str | None:
    """The socket of this machine that the docker command uses; None if its settings name something
    else. Without the SDK, which takes three times as long to load as the rest of `provision status`."""
    host, context = os.environ.get("DOCKER_HOST"), os.environ.get("DOCKER_CONTEXT")
    if host:
        return host.removeprefix("unix://") if host.startswith("unix://") else None
    config = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        has_context = "currentContext" in config.read_text(errors="replace")
    except OSError:
        has_context = False
    return None if context or has_context else str(SOCKET)


def connect_engine() -> tuple[Client, None] | tuple[None, str]:
    """A client of the engine that the docker command uses, or None and the reason.

    Takes a second at most. Since 7.2 the SDK reads DOCKER_HOST, DOCKER_CONTEXT and the current
    context of Docker's settings, in the command's order.
    """
    if _engine_socket() == str(SOCKET) and not SOCKET.exists():
        return None, f"there is no {SOCKET}"
    import docker
    from docker.context import ContextAPI
    from docker.context.config import get_current_context_name
    from docker.errors import DockerException
    from docker.utils.config import find_config_file

    host = os.environ.get("DOCKER_HOST")
    name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
    file: Any = find_config_file()
    try:
        if not host:
            if file is None and name != "default":  # the SDK would look in the working folder
                return None, (
                    f"without Docker's config.json its context `{name}` is not found (`docker "
                    f"context use {name}` writes the file)"
                )
            context: Any = ContextAPI.get_context(name)
            if context is None:  # the SDK would take the default engine instead
                return None, f"there is no Docker context `{name}` (`docker context ls`)"
            host = context.Host or f"unix://{SOCKET}"
        # The SDK needs paramiko for it, also where it starts the ssh command.
        if host.startswith("ssh://") and find_spec("paramiko") is None:
            return None, (
                f"{host} needs the Python package paramiko next to provision (`pip install "
                "paramiko`), or a tunnel: `ssh -fNL /tmp/engine.sock:/var/run/docker.sock HOST`, "
                "with DOCKER_HOST=unix:///tmp/engine.sock"
            )
        client: Client = docker.from_env(timeout=PING_TIMEOUT_S)
        client.ping()
    except (DockerException, OSError) as error:
        return None, f"{host}: {_root_cause(error)}"
    except Exception as error:  # what the SDK raises of files that it cannot read
        return None, f"Docker's settings ({file}, context `{name}`) are invalid: {error!r}"
    client.api.timeout = CALL_TIMEOUT_S
    return client, None


def require_engine(alternative: str = "build with --no-image") -> Client:
    """A client, or ToolMissing. alternative: what can be done without an engine, for the error."""
    client, reason = connect_engine()
    if client is None:
        raise ToolMissing(
            f"No Docker engine answers: {reason}.",
            advice=f"Start it (or set DOCKER_HOST), or {alternative}.",
        )
    return client


def _root_cause(error: BaseException) -> str:
    """The innermost reason of an SDK error, without the repr of the exceptions around it."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


@contextmanager
def engine_errors(purpose: str) -> Iterator[None]:
    """Turn what the SDK raises while it does `purpose` ("load the image") into our errors."""
    import requests
    from docker.errors import APIError, DockerException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except APIError as error:
        message = str(error.explanation or error)
        raise _engine_error(purpose, message, error.status_code) from error
    except DockerException as error:
        raise _engine_error(purpose, str(error), None) from error
    # HTTPError: within a response that comes in chunks.
    except (requests.RequestException, HTTPError, ConnectionError) as error:
        raise Unreachable(
            f"The connection to the Docker engine broke: could not {purpose}.",
            advice="See whether the engine runs (`docker info`), and run the same command again.",
            details=str(error),
        ) from error


def _engine_error(purpose: str, message: str, status: int | None) -> ProvisionError:
    if "no space left" in message.lower():
        return NoSpace(
            f"The Docker engine's disk is full: could not {purpose}.",
            advice="Free space there (`docker system df`) and run the same command again.",
            details=message,
        )
    if status == 409:
        return InUse(
            f"A container is in the way: could not {purpose}.",
            advice="Remove the container (`docker ps -a` lists them) and run the same command "
            "again.",
            details=message,
        )
    return ToolFailed(["docker", *purpose.split()], status or 1, message)


def none_if_missing(call: Callable[[], T]) -> T | None:
    """The result of a call, or None if the engine has no object of that name."""
    from docker.errors import NotFound

    try:
        return call()
    except NotFound:
        return None


def get_image(client: Client, reference: str) -> Any:
    """The engine's image of that name or id, or None."""
    with engine_errors(f"look for {reference}"):
        return none_if_missing(lambda: client.images.get(reference))


def pull_into_engine(client: Client, reference: str, progress: Progress) -> Any:
    """The image, pulled by the engine; ToolMissing if it cannot be pulled."""
    import requests
    from docker.errors import DockerException

    name = brief_reference(reference)
    progress.info(f"pulling the base image {name}")
    try:
        with progress.meter("waiting for Docker to pull it", 0):
            return client.images.pull(reference)
    except (DockerException, requests.RequestException) as error:
        reason = str(getattr(error, "explanation", None) or error)  # the engine's own
        raise ToolMissing(
            f"The base image {name} is not in the Docker engine, which could not pull it: "
            f"{reason.strip()}",
            advice="Choose an existing one with --base, or add it with `docker pull`, "
            "`docker load` or `docker import`.",
            details=f"{reference}: {error}",
        ) from error


def save_image(client: Client, image_id: str, chunk_size: int) -> Iterator[bytes]:
    """The image as an archive by `docker save`, streamed."""
    with engine_errors(f"save {image_id}"):
        yield from client.images.get(image_id).save(chunk_size=chunk_size)


def load_archive(client: Client, archive: Iterator[bytes], name: str) -> list[str]:
    """Load what `docker save` writes; returns the engine's names or ids of the images.

    name: of the image, for errors. An engine with containerd's image store keeps an image that it could not unpack, and answers with
    success (moby/moby, daemon/containerd/image_exporter.go). Such an image is removed, and an error.
    """
    loaded = []
    with engine_errors(f"load {name}"):
        for row in client.api.load_image(archive):
            text = str(row.get("stream") or "").strip()
            failure = (row.get("errorDetail") or {}).get("message", "")
            broken = re.match(_NOT_UNPACKED, text)
            if broken:
                failure = text
                none_if_missing(partial(client.images.remove, broken[1]))
            if failure:
                raise _engine_error(f"load {name}", failure, None)
            loaded += re.findall(_LOADED, text)
    return loaded


def _info(client: Client) -> dict[str, Any]:
    """What `docker info` shows."""
    with engine_errors("ask the engine about itself"):
        return dict(client.info())


def engine_identity(client: Client) -> str:
    """What tells two engines apart: the engine's id. Podman makes a new one for each request, so it is
    known by its machine and folder of images, which each user of it has."""
    info = _info(client)
    with engine_errors("ask for its version"):
        components = client.version().get("Components") or ()
    if any(str(part.get("Name")).startswith("Podman") for part in components):
        return f"podman:{info.get('Name')}:{info.get('DockerRootDir')}"
    return str(info["ID"])


def engine_version() -> tuple[str, None] | tuple[None, str]:
    """The version of the engine that the docker command uses, like 27.3.1, or None and the reason.

    An engine behind a socket of this machine is asked without the SDK.
    """
    path = _engine_socket()
    if path is None:
        client, reason = connect_engine()
        if client is None:
            return None, str(reason)
        with closing(client), engine_errors("ask for its version"):
            return str(client.version()["Version"]), None
    try:
        return str(_get(path, "/version")["Version"]), None
    except FileNotFoundError:
        return None, f"there is no {path}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return None, _root_cause(error)


def _get(path: str, target: str) -> Any:
    """What an engine's socket replies to a GET. Raises OSError; ValueError for another reply."""
    Path(path).stat()  # a machine without an engine need not load sockets, 3 ms
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PING_TIMEOUT_S)
        connection.connect(path)
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        with connection.makefile("rb") as reply:
            head, _, body = reply.read(1 << 20).partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError(head[:200].decode(errors="replace"))
    return parse_json(body)


def uses_containerd_store(client: Client) -> bool:
    """Whether an engine has containerd's image store, by `docker info`'s DriverStatus
    (moby/moby#43983). Engines with that store identify images by their manifests' digests."""
    status = _info(client).get("DriverStatus") or ()
    return ["driver-type", "io.containerd.snapshotter.v1"] in [list(row) for row in status]


def sees_this_machine(client: Client) -> bool:
    """Whether an engine is reached by a socket here, so that it can mount folders of this machine."""
    return bool(client.api.base_url == "http+docker://localhost")


def check_engine_space(client: Client, size: int) -> None:
    """Raise NoSpace if an engine of this machine has fewer bytes free. It is unknown of others, and
    where containerd has its images."""
    root = Path(_info(client).get("DockerRootDir") or "/")
    if not sees_this_machine(client) or uses_containerd_store(client) or not root.is_dir():
        return
    advice = "Free space there (`docker system df`) and run the same command again."
    require_space(root, size, "The Docker engine", advice)


def user_of_caller(client: Client) -> str:
    """uid:gid for a container whose files in mounted folders are this user's."""
    security = _info(client).get("SecurityOptions") or ()
    if any("rootless" in option for option in security):
        return "0:0"  # whom such an engine maps to the user who started it
    return f"{os.getuid()}:{os.getgid()}"


def has_nvidia_runtime(client: Client) -> bool:
    return "nvidia" in _info(client).get("Runtimes", {})


def wait_for_exit(container: Any, timeout_s: float) -> int | None:
    """A container's exit status, or None if it still runs after timeout_s."""
    import requests

    started = time.monotonic()
    try:
        return int(container.wait(timeout=timeout_s)["StatusCode"])
    except requests.RequestException:
        if time.monotonic() - started < timeout_s:  # the connection broke
            raise
        return None


def output_lines(container: Any) -> Iterator[str]:
    """The lines of a container's standard output, as they come, until it ends or is removed.

    Ends early if the connection breaks: they are for people who watch, and prove nothing.
    """
    import requests
    from docker.errors import DockerException

    unfinished = b""
    try:
        for piece in container.logs(stream=True, follow=True, stderr=False):
            *lines, unfinished = (unfinished + piece).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
    except (DockerException, requests.RequestException, OSError):
        return


# Credentials


class Login(NamedTuple):
    """Our credentials for a registry. user: empty if secret is a refresh token of OAuth2 ("identity
    token") instead of a password."""

    user: str
    secret: str


def stored_login(registry: str) -> Login | None:
    """What `docker login` stored, in Docker's config file or with a helper that it names.

    Raises InvalidSpec for a config file that is no JSON object, ToolMissing for a helper that is not
    installed.
    """
    from docker import auth
    from docker.utils.config import find_config_file

    file: Any = find_config_file()
    try:
        if file:  # the SDK reads an invalid one as empty
            parse_json(Path(file).read_bytes()).items()
        config = auth.load_config()
        helper = config.get_credential_store(registry)
        program = f"docker-credential-{helper}"
        if helper and shutil.which(program) is None:
            raise ToolMissing(
                f"{file} says that {program} has the login of {registry}, but there is no such "
                "program on PATH.",
                advice="Install it, or remove `credsStore` and `credHelpers` from the file and run "
                f"`docker login {registry}`.",
            )
        with engine_errors(f"read Docker's credentials for {registry}"):
            entry = config.resolve_authconfig(registry) or {}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidSpec(
            f"The login of {registry} cannot be read from Docker's config file {file}, or from the "
            f"credential helper that it names: {error}.",
            advice=f"Correct it, run `docker login {registry}`, or set DOCKER_CONFIG to another "
            "folder.",
        ) from error
    credentials = {key.lower(): value for key, value in entry.items()}
    if credentials.get("identitytoken"):
        return Login("", credentials["identitytoken"])
    if credentials.get("username") and credentials.get("password"):
        return Login(credentials["username"], credentials["password"])
    return None
