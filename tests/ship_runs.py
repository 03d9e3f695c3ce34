"""Shipments of toys to simulated nodes, for tests."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from provision.cluster.inventory import NodeDefaults, NodeSelection, select_nodes
from provision.cluster.pack import Pack, Sidecar
from provision.core.types import MeterContext
from provision.workflow.ship.shipment import Shipment
from provision.workflow.ship.stages import ShipRequest
from tests.node_stores import PackedToy
from tests.programs import write_program

# What fails on a node of that name (`SimulatedNodes.faults`).
FAULTS = {
    "dead": "echo 'ssh: connect to host dead port 22: No route to host' >&2; exit 255",
    "refused": "echo 'ssh: connect to host refused port 22: Connection refused' >&2; exit 255",
    "hung": "exec sleep 600",
    "arch": "WRAP='setarch i686'",
    "clock": "WRAP='faketime -f +1h'",
    "nopython": "[ ${0##*/} = sh ] || { echo 'sh: python3: not found' >&2; exit 127; }",
    # What is streamed into the program; the program itself has no such bytes.
    "corrupt": "[ ${0##*/} = sh ] || exec 0< <(tr '\\000\\377' '\\377\\000')",
}
# Stores with a full disk, without inodes, and read-only (`bad_disks`): options of their tmpfs.
DISKS = {"full": "size=16k", "inodes": "nr_inodes=3", "readonly": "ro"}
# Where nodes with these faults and disks are at the end of a shipment.
REACHED = {
    "dead": "failed:check:unreachable",
    "refused": "failed:check:refused",
    "hung": "unknown:check:timed-out",
    "arch": "failed:check:wrong-arch",
    "clock": "failed:check:clock-skew",
    "nopython": "failed:check:no-python",
    "full": "failed:check:disk-full",
    "inodes": "failed:check:no-inodes",
    "readonly": "failed:check:read-only",
    "corrupt": "failed:verify:wrong-bytes",
}
SOURCE = {"id": "run-1", "source": "laptop:1000:/data", "by": "ann@laptop"}


@dataclass
class Notes:
    """A Progress that keeps what was said."""

    lines: list[str] = field(default_factory=list)

    def info(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(f"warning: {text}")

    def meter(self, title: str, total: int) -> MeterContext:
        return self

    def advance(self, amount: int) -> None:
        pass

    def __enter__(self) -> Notes:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class SimulatedNodes:
    """Nodes that are folders on this machine.

    faults: what a node runs before its shell or its Python, by node. Such a line of shell may end
    the process, or change how it goes on.
    """

    root: Path
    names: str
    faults: Mapping[str, str] = field(default_factory=dict)

    def store(self, name: str) -> Path:
        return self.root / name

    @property
    def python(self) -> str:
        return f"{shlex.quote(f'{self.root}/bin/node-python')} %h"

    def selection(self) -> NodeSelection:
        self._write_programs()
        # Folders of tests are closed to other users.
        path = PurePosixPath(self.root, "%h")
        defaults = NodeDefaults(path=path, python=self.python, readers="me")
        return dataclasses.replace(select_nodes(f"exec:{self.names}"), defaults=defaults)

    def _write_programs(self) -> None:
        """What plays ssh, sshd and the node's Python: a shell and a Python that fail on some."""
        folder = self.root / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        cases = "".join(f"{name}) {line} ;;\n" for name, line in self.faults.items())
        shell = f"#!/bin/bash\ncase $PROVISION_NODE_NAME in\n{cases}esac\n"
        write_program(folder / "sh", shell + """eval "exec $WRAP" /bin/sh '"$@"'\n""")
        python = f"""shift\neval "exec $WRAP" {shlex.quote(shlex.quote(sys.executable))} '"$@"'\n"""
        write_program(folder / "node-python", shell + python)

    @property
    def path(self) -> str:
        """PATH, for a process in which these nodes have their faults."""
        return f"{self.root}/bin:{os.environ['PATH']}"

    def active(self, name: str = "toy") -> dict[str, str | None]:
        """The active key of each node, as its file system has it."""
        keys: dict[str, str | None] = {}
        for node in select_nodes(f"exec:{self.names}").nodes:
            link = self.store(node.name) / name
            keys[node.name] = link.readlink().name if link.is_symlink() else None
        return keys


@contextlib.contextmanager
def bad_disks(root: Path) -> Iterator[None]:
    """Mount the disks of nodes below the folder of their stores. Needs root."""
    with contextlib.ExitStack() as stack:
        for name, option in DISKS.items():
            folder = root / name
            folder.mkdir(parents=True)
            # By default every user may write there, which is a fault of its own.
            options = f"mode=755,{option}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
            stack.callback(subprocess.run, ["umount", str(folder)], check=True)
        yield


def write_image(folder: Path, toy: PackedToy, **changes: Any) -> Pack:
    """The files of a pack, with changes to its sidecar."""
    suffix = ".sqsh" if toy.pack["format"] == "squashfs" else ".tar.gz"
    image = folder / f"{toy.key}{suffix}"
    image.write_bytes(toy.image)
    return Pack(image=image, sidecar=cast("Sidecar", {**toy.pack, **changes}))


def shipment(
    nodes: SimulatedNodes,
    image: Pack,
    progress: Notes | None = None,
    identity: Mapping[str, str] = SOURCE,
    **options: Any,
) -> Shipment:
    """options: of ShipRequest."""
    request = ship_request(nodes, image.name, **options)
    return Shipment(request, identity, progress or Notes(), image)


def ship_request(nodes: SimulatedNodes, name: str, **options: Any) -> ShipRequest:
    return ShipRequest(name=name, selection=nodes.selection(), **options)


def states(run: Shipment) -> dict[str, str]:
    return {name: str(state) for name, state in run.states.items()}
