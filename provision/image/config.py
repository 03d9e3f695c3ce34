"""The config of an image: environment variables, user, labels, annotations; and the values of the
Dockerfile template, which gives the same. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from provision import __version__
from provision.core import tar
from provision.core.container import PREFIX, PYTHON, USER, WORKSPACE
from provision.core.errors import InvalidSpec
from provision.core.platforms import ARCHITECTURES, PLATFORM, Platform
from provision.core.types import Layer, Lock, Resolution
from provision.image import base as bases
from provision.image.layer_groups import (
    CODE_GROUP,
    GROUPS,
    LARGE,
    PYTHON_GROUP,
    LayerGroup,
    group_of,
)
from provision.image.own_files import (
    COMMAND,
    COMMAND_SCRIPT,
    COMPAT_LINK,
    has_compat,
    site_packages,
)

if TYPE_CHECKING:
    from provision.image.oci_layout import ImageConfig

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

BASE_NAME = "org.opencontainers.image.base.name"
BASE_ID = "org.provision.base.id"  # the digest of its config
BASE_DIGEST = "org.opencontainers.image.base.digest"
LOCK_LABEL = "org.provision.lock"
TOOL_LABEL = "org.provision.tool"
TITLE_LABEL = "org.opencontainers.image.title"

_STEP = "provision: "  # how each step of an image's history begins
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

# The distribution specification's rules for a repository's name; tags may have more characters.
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")

# Variables of a base that would lead the loader or Python out of the environment (CUDA bases set
# LD_LIBRARY_PATH).
FOREIGN = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")

# conda-lock reads our lock with the models of the same major version. 4.0.0 is in conda-forge's
# repodata of 2026-08. Python is pinned with it so that the solve of the Dockerfile's temporary
# stage has little room.
CONDA_LOCK = ("conda-lock=4.0.0", "python=3.12")


def source_date_epoch(environment: Mapping[str, str]) -> int:
    """The time of the image's files in seconds since 1970: SOURCE_DATE_EPOCH, or 1980-01-01."""
    text = environment.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return tar.EPOCH
    if not (text.isascii() and text.isdecimal()) or int(text) >= 8**11:
        raise InvalidSpec(
            f"SOURCE_DATE_EPOCH is {text!r}, but must be seconds since 1970.",
            advice="Unset it or set it to a whole number.",
        )
    return int(text)


def creation_time(environment: Mapping[str, str], lock: Lock, committed: int | None) -> int:
    """When the image was made, in seconds since 1970, the same on every machine: SOURCE_DATE_EPOCH,
    else when its code was committed, the day of the lock's `as_of`, or 1980-01-01."""
    if environment.get("SOURCE_DATE_EPOCH"):
        return source_date_epoch(environment)
    if committed is not None:
        return committed
    return epoch_of(f"{lock.as_of}T00:00:00Z") if lock.as_of else tar.EPOCH


# Names


def repository(name: str) -> str:
    """The repository of an environment's images, e.g. provision/torch2.3-cuda12.1-py311."""
    if not _REPOSITORY.fullmatch(name):
        raise InvalidSpec(
            f"An image cannot be named {name!r}: engines and registries accept lower-case letters "
            "and digits with single . _ - between them.",
            advice="Choose another name, or build with --no-image.",
        )
    return f"provision/{name}"


def image_reference(name: str, lock: Lock) -> str:
    return f"{repository(name)}:{lock.sha256[:12]}"


# Variables


def environment(
    resolution: Resolution, lock: Lock, inherited: Sequence[str] = ()
) -> dict[str, str]:
    """The variables of the image. inherited: those of its base, as KEY=VALUE."""
    variables = {}
    for pair in inherited:
        key, _, value = pair.partition("=")
        if key not in FOREIGN:
            variables[key] = value
    path = variables.get("PATH") or PATH
    variables |= {
        "PATH": f"{PREFIX}/bin:{path}",
        "CONDA_PREFIX": PREFIX,
        # ~/.local of a mounted home must not shadow the lock.
        "PYTHONNOUSERSITE": "1",
        # An arbitrary --user has no home; docker would set /, which that user cannot write to.
        "HOME": "/tmp",
        # getpass.getuser(), which torch.compile calls, fails for an id without a passwd entry.
        "USER": "provision",
        "PROVISION_LOCK_HASH": lock.sha256,
        # Makes enroot's 50-slurm-pytorch.sh set RANK, WORLD_SIZE and so on for each task of srun.
        "PYTORCH_VERSION": resolution.local_version,
    }
    if resolution.spec.infiniband:
        # enroot's 99-mellanox.sh reads it from the image, and passes no adapter without it.
        variables["MELLANOX_VISIBLE_DEVICES"] = "all"
    if resolution.cuda is not None:
        variables["NVIDIA_VISIBLE_DEVICES"] = "all"
        variables["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
        # NVIDIA's runtime checks it before a container starts. A space is "or" (libnvidia-container,
        # src/cli/dsl.c): a driver that is older than the toolkit's, but not older than its minimum
        # (minor-version compatibility), is enough.
        floor = f" driver>={resolution.driver_floor}" if resolution.driver_floor else ""
        variables["NVIDIA_REQUIRE_CUDA"] = f"cuda>={resolution.cuda}{floor}"
    return variables


# Labels and config


def labels(
    resolution: Resolution, lock: Lock, base: str, base_digest: str | None, epoch: int | None = None
) -> dict[str, str]:
    """Labels of the config, which are the manifest's annotations too. Unknown values have no key.

    epoch: when the image was made. There are no labels for source and licenses: packages have their
    own, which the SBOM lists.
    """
    cuda = f"CUDA {resolution.cuda}" if resolution.cuda else "no CUDA"
    description = f"PyTorch {resolution.local_version}, {cuda}, Python {resolution.python}"
    # The manifest's digest in a reference, which the annotation means; an engine may not know it.
    base_manifest_digest = base.partition("@")[2]
    values = {
        TITLE_LABEL: resolution.spec.name,
        "org.opencontainers.image.created": None if epoch is None else _format_time(epoch),
        "org.opencontainers.image.description": description,
        "org.opencontainers.image.version": lock.sha256[:12],
        BASE_NAME: base,
        BASE_DIGEST: base_manifest_digest,
        BASE_ID: base_digest,
        "org.provision.cuda": resolution.cuda or "none",
        "org.provision.driver-floor": resolution.driver_floor,
        "org.provision.gpus": " ".join(resolution.architectures) if resolution.cuda else None,
        LOCK_LABEL: lock.sha256,
        "org.provision.nccl": resolution.nccl,
        "org.provision.python": resolution.python,
        TOOL_LABEL: __version__,
        "org.provision.torch": resolution.local_version,
    }
    return {key: value for key, value in sorted(values.items()) if value}


def _format_time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).strftime(_TIME_FORMAT)


def epoch_of(created: str) -> int:
    """The time in a config that we wrote, in seconds since 1970."""
    time = datetime.strptime(created, _TIME_FORMAT).replace(tzinfo=timezone.utc)
    return int(time.timestamp())


def image_config(
    variables: Mapping[str, str],
    label: Mapping[str, str],
    layers: Sequence[Layer],
    epoch: int,
    platform: Platform = PLATFORM,
) -> ImageConfig:
    """The OCI image config. Its digest is what an engine calls the image id."""
    created = _format_time(epoch)
    reasons = {group.name: group.reason for group in GROUPS}
    history = []
    for layer in layers:
        reason = f" ({reasons[layer.group]})" if layer.group in reasons else ""
        history.append({"created": created, "created_by": f"{_STEP}{layer.group}{reason}"})
    return {
        "architecture": ARCHITECTURES[platform],
        "config": {
            "Cmd": [PYTHON],
            "Env": [f"{key}={value}" for key, value in variables.items()],
            "Labels": dict(label),
            "User": USER,
            "WorkingDir": WORKSPACE,
        },
        "created": created,
        "history": history,
        "os": "linux",
        "rootfs": {"diff_ids": [layer.digest for layer in layers], "type": "layers"},
    }


# The Dockerfile


def dockerfile_groups(lock: Lock) -> list[LayerGroup]:
    """The groups that get a layer from the Dockerfile: those that may have a package of the lock,
    and the one of all that is in no other. Sizes of wheels are not known yet."""
    names = {group_of(package, size) for package in lock.packages for size in (0, LARGE)}
    names = (names | {PYTHON_GROUP}) - {CODE_GROUP}
    return [group for group in GROUPS if group.name in names]


def dockerfile_context(resolution: Resolution, lock: Lock) -> dict[str, Any]:
    """The values of templates/Dockerfile.j2, the plain `docker build` way to the same
    environment."""
    base_on_disk = resolution.spec.base if bases.is_on_disk(resolution.spec.base) else None
    base = bases.chosen_base(None if base_on_disk else resolution.spec.base)
    # The base's own label names its digest too, and follows a base that is replaced.
    dockerfile_labels = labels(resolution, lock, base, None)
    dockerfile_labels.pop(BASE_DIGEST, None)
    groups = dockerfile_groups(lock)
    return {
        "base": base,
        "builder": bases.pinned("builder"),
        "command": json.dumps([PYTHON]),
        "compat": COMPAT_LINK if has_compat(lock.packages) else None,
        "copied": [group.name for group in groups],
        "conda_lock": list(CONDA_LOCK),
        "entry": COMMAND,
        "entry_lines": COMMAND_SCRIPT.splitlines(),
        "environment": list(environment(resolution, lock).items()),
        "epoch": tar.EPOCH,
        "foreign": list(FOREIGN),
        "frontend": bases.pinned("frontend"),
        "groups": [asdict(group) for group in groups if group.name != PYTHON_GROUP],
        "labels": list(dockerfile_labels.items()),
        "name": resolution.spec.name,
        "path": f'"{PREFIX}/bin:${{PATH:-{PATH}}}"',
        "portable": lock.portable,
        "prefix": PREFIX,
        "site_packages": site_packages(resolution.python),
        "stored": base_on_disk,
        "user": USER,
        "workspace": WORKSPACE,
    }
