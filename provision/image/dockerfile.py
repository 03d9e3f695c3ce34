"""The values of templates/Dockerfile.j2: the plain `docker build` way to the environment of the image. Pure."""

from __future__ import annotations

import json
from typing import Any

from provision.core.types import Lock, Resolution
from provision.image import base_images, config
from provision.image.conda_files import (
    ENTRY,
    ENTRY_SCRIPT,
    PREFIX,
    PYTHON,
    WORKSPACE,
    site_packages,
)

# conda-lock reads the lock that we write with the models of the same major version. 4.0.0 is in conda-forge's repodata of
# 2026-08; Python is pinned with it so that the solve of this throw-away stage has little room.
CONDA_LOCK = ("conda-lock=4.0.0", "python=3.12")


def dockerfile_context(resolution: Resolution, lock: Lock) -> dict[str, Any]:
    """What the template needs: words stay there, values come from here."""
    stored = resolution.spec.base if base_images.is_stored(resolution.spec.base) else None
    base = base_images.chosen_base(None if stored else resolution.spec.base)
    return {
        "base": base,
        "builder": base_images.pinned("builder"),
        "command": json.dumps([PYTHON]),
        "conda_lock": list(CONDA_LOCK),
        "entry": ENTRY,
        "entry_lines": ENTRY_SCRIPT.splitlines(),
        "environment": list(config.environment(resolution, lock).items()),
        "foreign": list(config.FOREIGN),
        "health": json.dumps(config.HEALTH),
        "health_times": f"--interval={config.HEALTH_INTERVAL_S}s --timeout={config.HEALTH_TIMEOUT_S}s --retries={config.HEALTH_RETRIES}",
        "labels": list(config.labels(resolution, lock, base, None).items()),
        "name": resolution.spec.name,
        "path": f'"{PREFIX}/bin:${{PATH:-{config.PATH}}}"',
        "portable": lock.portable,
        "prefix": PREFIX,
        "site_packages": site_packages(resolution.python),
        "stored": stored,
        "user": config.USER,
        "workspace": WORKSPACE,
    }
