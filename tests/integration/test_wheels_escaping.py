"""Wheels that would write outside of their environment: as uv_executable installs them, and as an image takes them."""

from __future__ import annotations

import posixpath
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from provision import channel
from provision.adapters.uv import uv_executable
from provision.core.types import LockedPackage
from provision.image import tree_files
from tests.integration.test_image import wheel
from tests.unit.image.test_image_build import LOCK

SITE = f"lib/python{channel.host_minor()}/site-packages"


def installed(folder: Path, files: dict[str, str], script: str | None = None) -> tuple[Path, str]:
    """An environment with that wheel, and uv's words."""
    result, prefix = (
        wheel(folder, "toy", "1.0", {"toy.py": "", **files}, script=script),
        folder / "envs" / "toy",
    )
    subprocess.run(
        [uv_executable(), "venv", "--quiet", "--offline", "--python", sys.executable, prefix],
        check=True,
    )
    command: list[str | Path] = [
        uv_executable(),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--offline",
        "--cache-dir",
        folder / "cache",
    ]
    return prefix, subprocess.run(
        [*command, "--python", prefix / "bin" / "python", result],
        capture_output=True,
        text=True,
        check=False,
    ).stderr


@pytest.mark.parametrize(
    "name", ["../../../../../outside/x", "OUTSIDE/x", "toy-1.0.data/data/../../../outside/x"]
)
def test_escaping_member_is_omitted(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    prefix, _ = installed(tmp_path, {name.replace("OUTSIDE", str(outside)): "x"})
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in (prefix / SITE).glob("toy*")) == [
        "toy-1.0.dist-info",
        "toy.py",
    ]
    for interpreter in prefix.glob("bin/python*"):
        interpreter.unlink()  # a link out of it
    locked = LockedPackage(manager="pip", name="toy", version="1.0", url="", sha256="")
    lock = replace(LOCK, packages=(locked,))
    entries = tree_files.package_entries(prefix, lock, None, None)["rest"]
    names = [posixpath.relpath(entry.path, f"opt/env/{SITE}") for entry in entries]
    assert sorted(name for name in names if ".dist-info" not in name) == ["toy.py"]


@pytest.mark.exhaustive
def test_escaping_command_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    _, message = installed(tmp_path, {}, script="../../../outside/command")
    assert "Script path must resolve to a file within the scripts directory" in " ".join(
        message.split()
    )
    assert list((tmp_path / "outside").iterdir()) == []
