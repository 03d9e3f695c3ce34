"""Wall time of a ship in which ten nodes have ten faults, against the same ship without faults.

Usage: sudo python benchmarks/bench_ship_faults.py [HEALTHY NODES] [ROUNDS]   (40 3; needs faketime, setarch)

Nodes are simulated: every command runs here, each node is a folder, and its fault is real
(`tests/ship_runs.py`). One node hangs, which costs a deadline; the target allows one, and 1.2 times the
ship without faults. Each node gets its image from here (`--tree 0`), so that the faults of one do not
decide about another.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from measure import box

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.node_stores import PackedToy, pack_toy  # noqa: E402
from tests.ship_runs import (  # noqa: E402
    FAULTS,
    REACHED,
    SimulatedNodes,
    bad_disks,
    shipment,
    states,
    write_image,
)

DEADLINE_S = 10.0
TARGET = 1.2
PATH = os.environ["PATH"]


def ship_s(folder: Path, toy: PackedToy, healthy: int, *, faulty: bool) -> tuple[float, int]:
    """Wall seconds of a first ship, and how many of the ten faults were named as they are."""
    root = folder / "nodes"
    names = ",".join([*REACHED, f"ok[1-{healthy}]"])
    nodes = SimulatedNodes(root=root, names=names, faults=FAULTS if faulty else {})
    os.environ["PATH"] = f"{root}/bin:{PATH}"
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        if faulty:
            stack.enter_context(bad_disks(root))
        run = shipment(
            nodes,
            write_image(folder, toy),
            minimum=str(healthy),
            retries=1,
            tree=0,
            deadline_s=DEADLINE_S,
        )
        start = time.perf_counter()
        run.ship()
        seconds = time.perf_counter() - start
        reached = states(run)
        finished = {reached[f"ok{number}"] for number in range(1, healthy + 1)}
        assert finished == {"active"}, finished
        named = sum(reached[name] == state for name, state in REACHED.items())
    return seconds, named


def main() -> None:
    healthy = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = box() / "ship-faults"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    toy = pack_toy(folder, "1", filler=100_000)
    pairs = []
    for _ in range(rounds):
        plain_s, _ = ship_s(folder, toy, healthy, faulty=False)
        faulty_s, named = ship_s(folder, toy, healthy, faulty=True)
        pairs.append((plain_s, faulty_s))
        print(
            f"{healthy + len(REACHED)} nodes: without faults {plain_s:.1f} s, with "
            f"{faulty_s:.1f} s; {named} of {len(REACHED)} faults named"
        )
    ratio = statistics.median((faulty - DEADLINE_S) / plain for plain, faulty in pairs)
    print(f"less one deadline of {DEADLINE_S:g} s: {ratio:.2f} times the first  (target {TARGET})")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
