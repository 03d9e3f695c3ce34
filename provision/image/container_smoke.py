"""Runs the smoke test in a container of an image, as `image contract` says; copies its report out
and removes the container."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from provision.adapters.docker import (
    Client,
    engine_errors,
    has_nvidia_runtime,
    none_if_missing,
    output_lines,
    wait_for_exit,
)
from provision.core import tar
from provision.core.container import STACK
from provision.core.errors import TimedOut
from provision.core.types import Image
from provision.image.docker import find_engine_id
from provision_runtime.comm import processes

REPORT_DIR = "/tmp/provision-smoke"
CHECKPOINT_DIR = "/tmp/provision-checkpoints"  # outside REPORT_DIR: not part of the report
HOST_NAME = "smoke"
ENVIRONMENT_LABEL = "org.provision.smoke"
OWNER_LABEL = "org.provision.smoke.owner"  # the identity of the process that waits for it
REPORT_LIMIT = 64 << 20
# How long to wait for the last lines of a container that has ended.
FOLLOW_GRACE_S = 5.0


def run_smoke(
    client: Client,
    image: Image,
    argv: Sequence[str],
    out: Path,
    *,
    timeout_s: float,
    folder: Path | None = None,
    gpus: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> tuple[int, str]:
    """Run `provision-smoke ARGV` in a container and copy its report to `out`. Returns the exit
    status and what it printed.

    folder: where checkpoints are tested; it is mounted, and the test runs as the calling user, who
    must be able to write there, instead of the image's user. gpus: give it all GPUs, if the engine
    has NVIDIA's runtime. on_line: called, in another thread, with each line that the test prints, as
    it comes. Raises TimedOut after timeout_s.
    """
    directories = ["--out", REPORT_DIR, "--folder", CHECKPOINT_DIR]
    command = ["provision-smoke", *directories, *argv]
    engine_id = find_engine_id(image, client)
    _remove_orphans(client, image)
    with engine_errors(f"run {image.reference}"):
        container = client.containers.create(
            engine_id,
            command,
            **_settings(client, image, gpus),
            **_folder_settings(folder),
        )
        try:
            container.start()
            with _follow(container, on_line):
                status = wait_for_exit(container, timeout_s)
            printed = container.logs().decode(errors="replace")
            # None if the smoke test ended before it made the report's directory.
            reply = none_if_missing(lambda: container.get_archive(REPORT_DIR, chunk_size=tar.CHUNK))
            if reply is not None:
                unpack_report(reply[0], out)
        finally:
            container.remove(force=True, v=True)
    if status is None:
        error = TimedOut(
            f"The smoke test in {image.reference} did not end within {timeout_s:g} s; its container "
            "was removed."
        )
        error.details = printed
        raise error
    return status, printed


@contextmanager
def _follow(container: Any, on_line: Callable[[str], None] | None) -> Iterator[None]:
    """Pass on the lines of a container's standard output while the block runs."""
    if on_line is None:
        yield
        return

    def read() -> None:
        for line in output_lines(container):
            on_line(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(timeout=FOLLOW_GRACE_S)


def _folder_settings(folder: Path | None) -> dict[str, object]:
    """The mount and the user, as the SDK's keyword arguments."""
    if folder is None:
        return {}
    return {
        "volumes": {str(folder.absolute()): {"bind": CHECKPOINT_DIR, "mode": "rw"}},
        "user": f"{os.getuid()}:{os.getgid()}",
        "group_add": os.getgroups(),
    }


def _settings(client: Client, image: Image, gpus: bool) -> dict[str, Any]:
    with_gpus = gpus and has_nvidia_runtime(client)
    # As in the contract. Without GPUs no memory is pinned, and an engine that may not raise the
    # limit of locked memory could not start the container.
    ulimits = [{"name": "stack", "soft": STACK, "hard": STACK}]
    if with_gpus:
        ulimits.append({"name": "memlock", "soft": -1, "hard": -1})
    return {
        "device_requests": [{"count": -1, "capabilities": [["gpu"]]}] if with_gpus else None,
        # Without a network nothing resolves the container's own name, which Gloo looks up.
        "extra_hosts": {HOST_NAME: "127.0.0.1"},
        "hostname": HOST_NAME,
        "init": True,
        "labels": {
            ENVIRONMENT_LABEL: _repository(image),
            OWNER_LABEL: " ".join(processes.this_process()),
        },
        "network_mode": "none",
        "shm_size": "1g",
        "ulimits": ulimits,
    }


def _repository(image: Image) -> str:
    return image.reference.rpartition(":")[0]


def _remove_orphans(client: Client, image: Image) -> None:
    """Remove the containers of earlier smoke tests of this environment whose provision was killed.
    Another test may be running, and remove the same ones."""
    with engine_errors("remove left-over containers"):
        containers = client.containers.list(
            all=True,
            filters={"label": f"{ENVIRONMENT_LABEL}={_repository(image)}"},
            ignore_removed=True,
        )
        for container in containers:
            # The process that waits for the container is known to have ended.
            if _has_ended(container.labels.get(OWNER_LABEL, "")):
                none_if_missing(lambda: container.remove(force=True, v=True))  # noqa: B023 - runs at once


def _has_ended(owner: str) -> bool:
    """Whether the process that a label names is known to have ended; not for a label of another
    form."""
    try:
        return processes.state(owner.split(" ")) == processes.GONE
    except ValueError:
        return False


def unpack_report(archive: Iterable[bytes], out: Path) -> None:
    """Write an archive's regular files, without its top directory. Skips names that lead elsewhere
    and whatever exceeds REPORT_LIMIT."""
    remaining = REPORT_LIMIT
    with tar.open_stream(archive) as members:
        for member in members:
            relative = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            remaining -= member.size
            is_safe = not relative.is_absolute() and ".." not in relative.parts
            if not member.isreg() or not is_safe or remaining < 0:
                continue
            file = members.extractfile(member)
            assert file is not None
            target = out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())
