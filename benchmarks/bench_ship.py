"""CPU of a ship that has nothing to do, against one ClusterShell command over the same nodes; and the bytes that a first ship sends.

Usage: python benchmarks/bench_ship.py [NODES ...]   (50 200 1000; root is not needed)

Nodes are simulated: every command runs here. For the first ship each has a folder of its own; for
the unchanged one all look at one folder, which costs each of them the same. CPU is that of this
process and of all its children, so it includes what real nodes would do themselves.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import resource
import shutil
import statistics
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import cast

from measure import box

from provision.adapters import clustershell
from provision.cli.console import Console
from provision.cluster.inventory import NodeDefaults, NodeSelection, select_nodes
from provision.cluster.pack import Pack, Sidecar
from provision.core.platforms import PLATFORM
from provision.workflow.ship.shipment import Shipment
from provision.workflow.ship.stages import ShipRequest
from provision_runtime.facts import digests

RUNS = 5
FIRST_SHIP_NODES = 50
TARGET = 1.5
# What an administrator would type to ask all nodes one thing.
COMMAND = "uname -r"


def cpu_s() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def image(folder: Path) -> Pack:
    """A tar.gz of a prefix that holds nothing but a Python that starts."""
    prefix = folder / "prefix"
    shutil.rmtree(prefix, ignore_errors=True)
    (prefix / "bin").mkdir(parents=True)
    python = prefix / "bin" / "python"
    python.write_text("#!/bin/sh\necho 3.11.7\n")
    python.chmod(0o755)
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w") as archive:
        archive.add(prefix, arcname=".")
    content = gzip.compress(text.getvalue(), mtime=0)
    key = "bench-000000000000"
    path = folder / f"{key}.tar.gz"
    path.write_bytes(content)
    sidecar = {
        "name": "bench",
        "key": key,
        "format": "tar",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "root": digests.prefix_digests(str(prefix), deep=True)["root"],
        "platform": PLATFORM,
        "glibc_min": "2.17",
        "unpacked_size": 1000,
        "unpacked_files": 3,
    }
    return Pack(image=path, sidecar=cast("Sidecar", sidecar))


def selection(count: int, folder: str) -> NodeSelection:
    width = len(str(count))
    nodes = select_nodes(f"exec:n[{1:0{width}}-{count}]")
    defaults = NodeDefaults(path=PurePosixPath(box(), "nodes", folder), python=sys.executable)
    return dataclasses.replace(nodes, defaults=defaults)


def ship(nodes: NodeSelection, packed: Pack) -> Shipment:
    identity = {"id": "bench", "source": "bench", "by": "bench"}
    request = ShipRequest(name="bench", selection=nodes)
    run = Shipment(request, identity, Console(as_json=True), packed)
    run.ship()
    states = {str(state) for state in run.states.values()}
    assert states == {"active"}, states
    return run


def command_cpu_s(nodes: NodeSelection) -> float:
    before = cpu_s()
    commands = {node.name: ["sh", "-c", COMMAND] for node in nodes.nodes}
    outputs = clustershell.run(commands, timeout_s=120)
    assert all(output.status == 0 for output in outputs)
    return cpu_s() - before


def unchanged_cpu_s(nodes: NodeSelection, packed: Pack) -> float:
    before = cpu_s()
    run = ship(nodes, packed)
    assert run.distribution.sent_bytes == run.distribution.copies_between_nodes == 0
    return cpu_s() - before


def main() -> None:
    shutil.rmtree(box() / "nodes", ignore_errors=True)
    packed = image(box())
    before = cpu_s()
    first = ship(selection(FIRST_SHIP_NODES, "%h"), packed)
    images = first.distribution.sent_bytes / packed.size
    seconds = cpu_s() - before
    print(
        f"first ship to {FIRST_SHIP_NODES} nodes: {images:.1f} images from here, {seconds:.0f} s CPU"
    )
    ship(selection(1, "one"), packed)
    for count in map(int, sys.argv[1:] or ("50", "200", "1000")):
        nodes = selection(count, "one")
        pairs = []
        for _ in range(RUNS):  # in turns: whatever else the machine does falls on both
            pairs.append((command_cpu_s(nodes), unchanged_cpu_s(nodes, packed)))
        command = statistics.median(pair[0] for pair in pairs)
        unchanged = statistics.median(pair[1] for pair in pairs)
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
        print(
            f"{count} nodes: unchanged ship {unchanged:.2f} s CPU, `{COMMAND}` {command:.2f} s: "
            f"{ratio:.2f}  (target {TARGET})"
        )
    shutil.rmtree(box() / "nodes")


if __name__ == "__main__":
    main()
