"""What an image says about itself: environment, user, labels, annotations. All of it is pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from provision import __version__
from provision.core.errors import InvalidSpec
from provision.core.types import Layer, Lock, Resolution
from provision.image.conda_files import GROUPS, PREFIX, PYTHON, WORKSPACE

USER = "1000:1000"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The time of every file when SOURCE_DATE_EPOCH is not set: 1980-01-01, the oldest that a zip archive can hold.
EPOCH = 315532800

LOCK_LABEL = "org.provision.lock"
TITLE_LABEL = "org.opencontainers.image.title"
STACK = 64 << 20

_STEP = "provision: "  # how each step of an image's history begins
_TIME = "%Y-%m-%dT%H:%M:%SZ"

# Not in OCI's specification, which has readers ignore what they do not know; Docker's config has it, and engines read it from either.
HEALTH = (PYTHON, "-I", "-m", "provision_runtime.facts.health")
HEALTH_INTERVAL_S, HEALTH_TIMEOUT_S, HEALTH_RETRIES = 60, 30, 3

# The rules of the distribution specification for a repository name; tags are wider.
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")

# Variables of a base that would lead the loader or Python out of the environment (CUDA bases set LD_LIBRARY_PATH).
FOREIGN = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")


def source_date_epoch(environment: Mapping[str, str]) -> int:
    """The time that files in the image bear: SOURCE_DATE_EPOCH, or ours."""
    text = environment.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return EPOCH
    if not (text.isascii() and text.isdecimal()) or int(text) >= 8**11:
        raise InvalidSpec(
            f"SOURCE_DATE_EPOCH is {text!r}, but must be seconds since 1970.",
            advice="Unset it or give a whole number.",
        )
    return int(text)


def repository(name: str) -> str:
    """The repository of an environment's images, e.g. provision/torch2.3-cuda12.1-py311."""
    if not _REPOSITORY.fullmatch(name):
        raise InvalidSpec(
            f"An image cannot be named {name!r}: engines and registries take lower-case letters and digits with single . _ - between them.",
            advice="Choose such a name, or build without --image.",
        )
    return f"provision/{name}"


def reference(name: str, lock: Lock) -> str:
    return f"{repository(name)}:{lock.sha256[:12]}"


def environment(
    resolution: Resolution, lock: Lock, inherited: Sequence[str] = ()
) -> dict[str, str]:
    """The variables of the image, laid over those of its base."""
    pairs = (pair.partition("=") for pair in inherited)
    base = {key: value for key, _, value in pairs if key not in FOREIGN}
    return {**base, **_own_variables(resolution, lock, base.get("PATH") or PATH)}


def _own_variables(resolution: Resolution, lock: Lock, path: str) -> dict[str, str]:
    own = {
        "PATH": f"{PREFIX}/bin:{path}",
        "CONDA_PREFIX": PREFIX,
        "PYTHONNOUSERSITE": "1",  # a mounted home's ~/.local must not shadow the lock
        "HOME": "/tmp",  # an arbitrary --user has no home; docker would say /, which it cannot write to
        "USER": "provision",  # getpass.getuser(), which torch.compile calls, fails for an id without a passwd line
        "PROVISION_LOCK_HASH": lock.sha256,
        "PYTORCH_VERSION": resolution.local_version,  # enroot's 50-slurm-pytorch.sh then tells each rank of srun who it is
    }
    if resolution.spec.infiniband:
        own["MELLANOX_VISIBLE_DEVICES"] = (
            "all"  # enroot's 99-mellanox.sh reads it from the image, and gives no adapter without it
        )
    if resolution.cuda is not None:
        own["NVIDIA_VISIBLE_DEVICES"] = "all"
        own["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
        own["NVIDIA_REQUIRE_CUDA"] = _require_cuda(resolution)
    return own


def _require_cuda(resolution: Resolution) -> str:
    """What NVIDIA's runtime checks before a container starts.

    A space is "or" (libnvidia-container, src/cli/dsl.c): a driver that is older than the toolkit's own, but meets its floor
    (minor-version compatibility), will do.
    """
    floor = f" driver>={resolution.driver_floor}" if resolution.driver_floor else ""
    return f"cuda>={resolution.cuda}{floor}"


def labels(
    resolution: Resolution, lock: Lock, base: str, base_digest: str | None, epoch: int | None = None
) -> dict[str, str]:
    """Labels of the config, which are the annotations of the manifest too. A value that is not known has no key.

    epoch: when it was made, where that is said. Of source and licenses nothing is said: they are the packages' own, and in its bill.
    """
    known = {
        TITLE_LABEL: resolution.spec.name,
        "org.opencontainers.image.created": None if epoch is None else _time(epoch),
        "org.opencontainers.image.description": _described(resolution),
        "org.opencontainers.image.version": lock.sha256[:12],
        "org.opencontainers.image.base.name": base,
        "org.opencontainers.image.base.digest": _pinned(base),
        "org.provision.base.id": base_digest,
        "org.provision.cuda": resolution.cuda or "none",
        "org.provision.driver-floor": resolution.driver_floor,
        "org.provision.gpus": " ".join(resolution.architectures) if resolution.cuda else None,
        LOCK_LABEL: lock.sha256,
        "org.provision.nccl": resolution.nccl,
        "org.provision.python": resolution.python,
        "org.provision.tool": __version__,
        "org.provision.torch": resolution.local_version,
    }
    return {key: value for key, value in sorted(known.items()) if value}


def _described(resolution: Resolution) -> str:
    cuda = f"CUDA {resolution.cuda}" if resolution.cuda else "no CUDA"
    return f"PyTorch {resolution.local_version}, {cuda}, Python {resolution.python}"


def _time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).strftime(_TIME)


def epoch_of(created: str) -> int:
    """The time in a config that we wrote, in seconds since 1970."""
    return int(datetime.strptime(created, _TIME).replace(tzinfo=timezone.utc).timestamp())


def _pinned(base: str) -> str | None:
    """The digest in a reference: the manifest's, which the annotation means. An engine need not know it."""
    return base.partition("@")[2] or None


def image_config(
    variables: Mapping[str, str], label: Mapping[str, str], layers: Sequence[Layer], epoch: int
) -> dict[str, Any]:
    """The OCI image config. Its digest is what an engine calls the image id."""
    created = _time(epoch)
    return {
        "architecture": "amd64",
        "config": {
            "Cmd": [PYTHON],
            "Env": [f"{key}={value}" for key, value in variables.items()],
            "Healthcheck": healthcheck(),
            "Labels": dict(label),
            "User": USER,
            "WorkingDir": WORKSPACE,
        },
        "created": created,
        "history": [
            {"created": created, "created_by": f"{_STEP}{_layer_title(layer.group)}"}
            for layer in layers
        ],
        "os": "linux",
        "rootfs": {"diff_ids": [layer.digest for layer in layers], "type": "layers"},
    }


def healthcheck() -> dict[str, Any]:
    """As Docker's config has it: times in nanoseconds."""
    second = 10**9
    times = {
        "Interval": HEALTH_INTERVAL_S * second,
        "Timeout": HEALTH_TIMEOUT_S * second,
        "Retries": HEALTH_RETRIES,
    }
    return {"Test": ["CMD", *HEALTH], **times}


def is_ours(steps: Sequence[str]) -> bool:
    """Whether an image is as we made it, by its history. Whoever builds on one of ours inherits its labels, and adds a step."""
    return bool(steps) and all(step.startswith(_STEP) for step in steps)


def _layer_title(group: str) -> str:
    reasons = {row.name: row.reason for row in GROUPS}
    return f"{group} ({reasons[group]})" if group in reasons else group
