"""Nodes that exist as folders: each has an environment and a system (driver, plug-ins) of its own.

`--on exec:n[1-9]` runs the node program here once for each, and "%h" in its arguments becomes the
node's name. Nodes that were not changed share their files through links.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.elf_files import write_library

SITE = "lib/python3.11/site-packages"
DRIVER_FILE = "proc/driver/nvidia/version"
PLUGIN_FILE = "opt/amazon/ofi-nccl/lib/libnccl-net.so"
DRIVER, OTHER_DRIVER = "535.183.01", "535.104.05"
PLUGIN, OTHER_PLUGIN = "1.13.2-aws", "1.9.1-aws"


@dataclass(frozen=True)
class SimulatedNodes:
    """Folders of nodes called n0001, n0002, ...; `prefix` and `root` are arguments for them."""

    folder: Path
    names: tuple[str, ...]

    @property
    def prefix(self) -> str:
        return str(self.folder / "%h" / "env")

    @property
    def root(self) -> str:
        return str(self.folder / "%h" / "root")

    @property
    def on(self) -> str:
        return (
            f"exec:{self.names[0]}-{self.names[-1]}".replace("-n", "-").replace(":n", ":n[") + "]"
        )

    def environment(self, name: str) -> Path:
        """A node's environment, from now on its own."""
        return self._own(name, "env")

    def system(self, name: str) -> Path:
        """The folder above a node's /proc and /opt, from now on its own."""
        return self._own(name, "root")

    def _own(self, name: str, part: str) -> Path:
        path = self.folder / name / part
        if path.is_symlink():
            source = path.resolve()
            path.unlink()
            shutil.copytree(source, path, symlinks=True)
        return path


def simulate_nodes(folder: Path, count: int, distributions: int) -> SimulatedNodes:
    """Equal nodes."""
    reference = folder / "reference"
    add_conda_python(reference / "env")
    for number in range(distributions):
        add_wheel(reference / "env", f"package{number:03}", "1.0")
    set_driver(reference / "root", DRIVER)
    set_plugin(reference / "root", PLUGIN)
    names = tuple(f"n{number:04}" for number in range(1, count + 1))
    for name in names:
        (folder / name).mkdir()
        (folder / name / "env").symlink_to(reference / "env")
        (folder / name / "root").symlink_to(reference / "root")
    return SimulatedNodes(folder, names)


def add_conda_python(prefix: Path) -> None:
    write(prefix / "bin" / "python3.11", "#!/bin/sh\n")
    marker = {"name": "train", "folder": "/envs/train", "lock_sha256": "a" * 64}
    write(prefix / "conda-meta" / "provision.json", json.dumps(marker))


def add_wheel(prefix: Path, name: str, version: str) -> None:
    text = f"VERSION = {version!r}\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    write(prefix / SITE / name / "__init__.py", text)
    record = f"{name}-{version}.dist-info/RECORD"
    rows = f"{name}/__init__.py,sha256={digest},{len(text)}\n{record},,\n"
    write(prefix / SITE / record, rows)


def remove_wheel(prefix: Path, name: str, version: str) -> None:
    shutil.rmtree(prefix / SITE / name)
    shutil.rmtree(prefix / SITE / f"{name}-{version}.dist-info")


def flip_byte(prefix: Path, name: str) -> None:
    """Change a file without changing its size."""
    path = prefix / SITE / name / "__init__.py"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def set_driver(root: Path, version: str) -> None:
    text = (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Sun May 12 19:39:15 UTC 2024\n"
    )
    write(root / DRIVER_FILE, text)


def set_plugin(root: Path, version: str) -> None:
    text = f"\0NET/OFI Initializing aws-ofi-nccl {version}\0".encode()
    build_id = hashlib.sha256(text).hexdigest()[:40]
    (root / PLUGIN_FILE).unlink(missing_ok=True)
    write_library(root / PLUGIN_FILE, text, build_id)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
