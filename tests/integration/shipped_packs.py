"""Packs of small prefixes with a real Python, for shipments to real hosts."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from provision.environment import runtime_package
from tests.node_stores import sidecar

SOME_HASH = "0" * 64


def write_pack(
    project: Path, name: str, version: str, store: PurePosixPath, filler: int = 20_000_000
) -> dict[str, Any]:
    """A squashfs of a venv with the runtime package and `filler` bytes, where `provision pack` puts
    it; returns its sidecar. project: what the data folder has of the project."""
    folder = project / "packs" / name
    folder.mkdir(parents=True, exist_ok=True)
    prefix = project / f"prefix-{version}"
    # Root ships for all users, and its own Python may lie where they cannot go.
    base = shutil.which("python3", path=os.defpath) or f"{sys.base_prefix}/bin/python3"
    subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", prefix], check=True)
    runtime_package.install(prefix, runtime_package.load())
    (prefix / "filler").write_bytes(random.Random(version).randbytes(filler))
    image = folder / "image"
    image.unlink(missing_ok=True)
    command = ["mksquashfs", prefix, image, "-quiet", "-no-progress", "-all-root", "-noD"]
    subprocess.run([*map(str, command)], check=True)
    document: dict[str, Any] = {**sidecar(version, "squashfs", image.read_bytes(), prefix)}
    document["name"] = name
    document["key"] = f"{name}-{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    document.update(
        schema=1,
        compression="zstd",
        made_with="mksquashfs",
        install_path=str(store / "envs" / document["key"]),
        lock_sha256=SOME_HASH,
        content_hash=SOME_HASH,
        runtime={"version": "1", "sha256": SOME_HASH},
        python=sys.version.split()[0],
        driver_min=None,
        distributions={},
    )
    image.rename(folder / f"{document['key']}.sqsh")
    (folder / f"{document['key']}.json").write_text(json.dumps(document))
    return document
