"""CPU of the caller for one action on simulated nodes, against one plain ClusterShell command on as many.

Usage: python benchmarks/bench_nodes.py [NODES]
Each node is a process on this machine (ClusterShell's exec worker); its CPU is not the caller's. The nodes read the
whole program and answer without running it.
"""

from __future__ import annotations

import resource
import sys

from provision.adapters import clustershell
from provision.cluster import actions
from provision.cluster.inventory import NodeDefaults, select_nodes
from provision.cluster.remote import run_action

ANSWER = 'sh -c "cat >/dev/null; echo \'provision-node: {\\"result\\": {}}\'" --'
ROUNDS = 3


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    nodes = select_nodes(f"exec:n[1-{count}]").nodes
    commands = {node.name: ["sh", "-c", "true"] for node in nodes}
    plain, ours = [], []
    for _ in range(ROUNDS):
        start = cpu_s()
        clustershell.run(commands, timeout_s=600)
        plain.append(cpu_s() - start)
        start = cpu_s()
        replies = run_action(
            nodes,
            actions.FACTS,
            {"path": "/", "rules": {}},
            stage="check",
            timeout_s=600,
            defaults=NodeDefaults(python=ANSWER),
        )
        ours.append(cpu_s() - start)
        assert all(reply.failure is None for reply in replies)
    print(f"{count} nodes, caller's CPU: one command {min(plain):.2f} s, action {min(ours):.2f} s")
    print(f"ratio {min(ours) / min(plain):.2f}")


if __name__ == "__main__":
    main()
