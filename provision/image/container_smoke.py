"""The smoke test in a container of an image: run by the contract, its report copied out, the container removed."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from provision.core.atomic import atomic_write
from provision.core.errors import TimedOut, ToolMissing
from provision.core.types import Image
from provision.image.config import STACK
from provision.image.docker_load import called
from provision.image.docker_sdk import Client, found, speaking, wait
from provision.image.layers import PIECE, reading
from provision_runtime.comm import processes

FOLDER = "/tmp/provision-smoke"
CHECKPOINTS = "/tmp/provision-checkpoints"  # not in FOLDER: they are not part of the report
INPUTS = "/tmp/provision-inputs"
EXPECT, BASELINE = "expected.json", "baseline.json"
HOST = "smoke"
LABEL = "org.provision.smoke"
OWNER = (
    "org.provision.smoke.owner"  # the provision that waits for it, as in inside/smoke/processes.py
)
OWNER_FIELDS = 3
REPORT_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Files:
    """folder: where checkpoints are tested, mounted; the test is then run by who calls it and not by the image's own user, since that is
    who must write there. expect: curves of expected bandwidth. baseline: bandwidths, to `save` or to `compare` with (verb)."""

    folder: Path | None = None
    expect: Path | None = None
    baseline: Path | None = None
    verb: str | None = None

    @property
    def options(self) -> list[str]:
        expect = ["--expect", f"{INPUTS}/{EXPECT}"] if self.expect else []
        place = FOLDER if self.verb == "save" else INPUTS
        return expect + (["--baseline", f"{self.verb}={place}/{BASELINE}"] if self.baseline else [])

    @property
    def mounts(self) -> dict[str, Any]:
        if self.folder is None:
            return {}
        volumes = {str(self.folder.absolute()): {"bind": CHECKPOINTS, "mode": "rw"}}
        return {
            "volumes": volumes,
            "user": f"{os.getuid()}:{os.getgid()}",
            "group_add": os.getgroups(),
        }

    def copy_in(self, container: Any) -> None:
        """By the engine, which may be on another machine; readable by every user."""
        inputs = {EXPECT: self.expect, BASELINE: self.baseline if self.verb == "compare" else None}
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as writer:
            for name, path in inputs.items():
                if path is not None:
                    member = tarfile.TarInfo(f"{PurePosixPath(INPUTS).name}/{name}")
                    content = path.read_bytes()
                    member.size = len(content)
                    writer.addfile(member, io.BytesIO(content))
        container.put_archive(str(PurePosixPath(INPUTS).parent), archive.getvalue())

    def take_saved(self, out: Path) -> None:
        if self.baseline and self.verb == "save" and (out / BASELINE).is_file():
            try:
                atomic_write(self.baseline, (out / BASELINE).read_bytes())
            except (
                OSError
            ) as error:  # the name of the file that was to be replaced, not of the one beside it
                raise OSError(error.errno, error.strerror, str(self.baseline)) from error


def run_smoke(
    client: Client,
    image: Image,
    argv: Sequence[str],
    out: Path,
    *,
    timeout_s: float,
    files: Files | None = None,
    shm_size: str = "1g",
    gpus: bool = False,
    network: str = "none",
) -> tuple[int, str]:
    """Run `provision-smoke ARGV` in a container, copy its report to `out`; the exit status and what it printed.

    files: of this machine, that the test reads or writes. gpus: give it all GPUs, where the engine has NVIDIA's runtime. Raises
    TimedOut after timeout_s.
    """
    given = files or Files()
    command = [
        "provision-smoke",
        "--out",
        FOLDER,
        "--checkpoint-dir",
        CHECKPOINTS,
        *argv,
        *given.options,
    ]
    identity = called(image, client)
    if identity is None:
        advice = "Build it again: `provision image build`."
        raise ToolMissing(
            f"The image {image.reference} is not in the Docker engine (any more).", advice=advice
        )
    _remove_leftovers(client, image)
    with speaking(f"run {image.reference}"):
        container = client.containers.create(
            identity, command, **_options(client, image, shm_size, gpus, network), **given.mounts
        )
        try:
            given.copy_in(container)
            container.start()
            status = wait(container, timeout_s)
            printed = container.logs().decode(errors="replace")
            _copy_out(container, out)
            given.take_saved(out)
        finally:
            container.remove(force=True, v=True)
    if status is None:
        late = TimedOut(
            f"The smoke test in {image.reference} did not end within {timeout_s:g} s; its container was removed."
        )
        late.details = printed
        raise late
    return status, printed


def _options(
    client: Client, image: Image, shm_size: str, gpus: bool, network: str
) -> dict[str, Any]:
    apart = network == "none"  # nothing then knows the container's own name, which Gloo looks up
    with_gpus = gpus and "nvidia" in client.info().get("Runtimes", {})
    return {
        "device_requests": [{"count": -1, "capabilities": [["gpu"]]}] if with_gpus else None,
        "extra_hosts": {HOST: "127.0.0.1"} if apart else None,
        "hostname": HOST if apart else None,
        "init": True,
        "labels": {LABEL: _name(image), OWNER: " ".join(processes.own_identity())},
        "network_mode": network,
        "shm_size": shm_size,
        "ulimits": _ulimits(with_gpus),
    }


def _ulimits(with_gpus: bool) -> list[dict[str, Any]]:
    """As in the contract. Without GPUs no memory is pinned, and an engine that may not raise the limit would not start."""
    stack = {"name": "stack", "soft": STACK, "hard": STACK}
    return [stack, {"name": "memlock", "soft": -1, "hard": -1}] if with_gpus else [stack]


def _name(image: Image) -> str:
    return image.reference.rpartition(":")[0]


def _remove_leftovers(client: Client, image: Image) -> None:
    """Containers of an earlier smoke test of this environment whose provision was killed. Another test may run right now, and
    clear away too."""
    with speaking("remove left-over containers"):
        for container in client.containers.list(
            all=True, filters={"label": f"{LABEL}={_name(image)}"}, ignore_removed=True
        ):
            if _is_orphan(container.labels):
                found(lambda: container.remove(force=True, v=True))  # noqa: B023 - runs at once


def _is_orphan(labels: Mapping[str, str]) -> bool:
    """Whether its owner is known to be gone: one of another machine, boot or container cannot be seen from here."""
    owner = labels.get(OWNER, "").split(" ")
    return (
        len(owner) == OWNER_FIELDS
        and owner[1].isdigit()
        and processes.state(owner) == processes.GONE
    )


def _copy_out(container: Any, out: Path) -> None:
    """Copy the report folder; nothing where the smoke test did not get as far as making one."""
    reply = found(lambda: container.get_archive(FOLDER, chunk_size=PIECE))
    if reply is not None:
        unpack(reply[0], out)


def unpack(archive: Iterable[bytes], out: Path) -> None:
    """Write an archive's files without its top folder; not what leads elsewhere or goes beyond REPORT_LIMIT."""
    left = REPORT_LIMIT
    with reading(archive) as members:
        for member in members:
            relative = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            left -= member.size
            if not member.isreg() or relative.is_absolute() or ".." in relative.parts or left < 0:
                continue
            file = members.extractfile(member)
            assert file is not None
            target = out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())
