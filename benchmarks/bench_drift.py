"""CPU of the caller and bytes received while `provision drift` compares 1,000 simulated nodes of 123 distributions.

Usage: python benchmarks/bench_drift.py [NODES]
Each node is a process on this machine (ClusterShell's exec worker) that really reads its own folders; its CPU is not the
caller's. 20 nodes deviate: a flipped byte, a distribution too many, one too few, another driver, another NCCL plug-in.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import box

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import simulated_nodes  # noqa: E402

DISTRIBUTIONS, OUTLIERS = 123, 20
TARGET_CPU_S, TARGET_BYTES = 10.0, 5e6


def main() -> None:
    if "--caller" in sys.argv:
        compare(json.loads(sys.argv[-1]))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    folder = box() / "drift"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    nodes = simulated_nodes.simulate_nodes(folder, count, DISTRIBUTIONS)
    deviating = set(make_outliers(nodes))
    request = {"on": nodes.on, "prefix": nodes.prefix, "root": nodes.root}
    results = {}
    for kind in ("one command", "drift --deep"):
        argument = json.dumps({**request, "kind": kind})
        start = time.perf_counter()
        output = subprocess.run(
            [sys.executable, __file__, "--caller", argument],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ).stdout
        results[kind] = json.loads(output)
        print(
            f"{kind} on {count} nodes: caller {results[kind]['cpu_s']:.2f} s CPU, all nodes"
            f" {results[kind]['node_cpu_s']:.0f} s CPU, {time.perf_counter() - start:.0f} s wall,"
            f" {results[kind]['bytes'] / 1e6:.2f} MB received"
        )
    drift, bare = results["drift --deep"], results["one command"]
    named = deviating & set(drift["named"])
    print(
        f"{len(named)} of {OUTLIERS} outliers named, {len(set(drift['named']) - deviating)} others"
    )
    print(f"targets: {TARGET_CPU_S:g} s, {TARGET_BYTES / 1e6:g} MB")
    print(f"caller's CPU against one ClusterShell command: {drift['cpu_s'] / bare['cpu_s']:.2f}")


def make_outliers(nodes: simulated_nodes.SimulatedNodes) -> list[str]:
    names = list(nodes.names[7 :: max(1, len(nodes.names) // (OUTLIERS + 1))][:OUTLIERS])
    for number, name in enumerate(names):
        if number % 5 == 0:
            simulated_nodes.flip_byte(nodes.environment(name), f"package{number:03}")
        elif number % 5 == 1:
            simulated_nodes.add_wheel(nodes.environment(name), "flash-attn", "2.5.8")
        elif number % 5 == 2:
            simulated_nodes.remove_wheel(nodes.environment(name), f"package{number:03}", "1.0")
        elif number % 5 == 3:
            simulated_nodes.set_driver(nodes.system(name), simulated_nodes.OTHER_DRIVER)
        else:
            simulated_nodes.set_plugin(nodes.system(name), simulated_nodes.OTHER_PLUGIN)
    return names


def compare(request: dict[str, Any]) -> None:
    """In a process of its own, whose CPU is the caller's."""
    from provision.adapters import clustershell
    from provision.cluster.inventory import select_nodes
    from provision.verbs.drift.survey import DriftRequest, survey

    received = 0
    run = clustershell.run

    def counting_run(*arguments: Any, **options: Any) -> list[clustershell.NodeOutput]:
        nonlocal received
        outputs = run(*arguments, **options)
        for output in outputs:
            received += len(output.stdout) + len(output.stderr.encode())
        return outputs

    clustershell.run = counting_run
    selection = select_nodes(request["on"])
    named = []
    if request["kind"] == "one command":
        commands = {node.name: ["sh", "-c", "true"] for node in selection.nodes}
        clustershell.run(commands, timeout_s=600)
    else:
        record = survey(
            DriftRequest(
                name="train",
                selection=selection,
                prefix=request["prefix"],
                root=request["root"],
                deep=True,
            )
        )
        json.dumps(record)
        named = [node["name"] for node in record["nodes"] if node["verdict"] == "drift"]
    own = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "cpu_s": own.ru_utime + own.ru_stime,
        "node_cpu_s": others.ru_utime + others.ru_stime,
        "bytes": received,
        "named": named,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
