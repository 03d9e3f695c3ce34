"""An envs folder for tests of commands: requests only, nothing locked or installed, no engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest


def described_environments(
    folder: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], spec: str
) -> None:
    """Make `folder` the working folder, with all of provision's own folders below it, and in its
    envs an environment of each name with this spec.yml."""
    for variable in ("DATA", "CACHE", "ENVS"):
        monkeypatch.setenv(f"PROVISION_{variable}", str(folder / variable.lower()))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder / "jupyter"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.chdir(folder)
    for name in names:
        environment = folder / "envs" / name
        environment.mkdir(parents=True)
        (environment / "spec.yml").write_text(spec)
