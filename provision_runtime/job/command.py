"""The options of `python -m provision_runtime job`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping

from ..facts import libraries
from .agent import HUNG
from .node import KEY_VARIABLE, JobOptions

# Where engines say which node of the job this is: Slurm, an Indexed Job of Kubernetes.
NODE_VARIABLES = ("SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK")
NAME_VARIABLES = ("SLURMD_NODENAME", "NODE_NAME")
# Characters of the job's key, 128 bits in hexadecimal, and of the line that is read.
SHORTEST_KEY, LONGEST_KEY = 32, 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--id", default="job", help="identifies this start of the job; the same on every node"
    )
    parser.add_argument("--nodes", type=_positive, default=1, metavar="N")
    parser.add_argument(
        "--node",
        type=int,
        metavar="NUMBER",
        help=f"which node this is, from 0  [default: {', '.join(NODE_VARIABLES)}]",
    )
    parser.add_argument(
        "--name", help=f"what messages call this node  [default: {', '.join(NAME_VARIABLES)}, host]"
    )
    parser.add_argument(
        "--names", type=_list, default=(), metavar="A,B,...", help="what messages call the nodes"
    )
    parser.add_argument(
        "--head", type=_list, default=(), metavar="HOST,...", help="names and addresses of node 0"
    )
    parser.add_argument(
        "--port", type=_port, help="where node 0 listens  [default: one that follows from --id]"
    )
    parser.add_argument(
        "--key-stdin",
        action="store_true",
        help="read the job's key, the same on every node, from the first line of standard input  "
        f"[default: from {KEY_VARIABLE}]",
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        default=0,
        metavar="N",
        help="start COMMAND (a Python script, or -m MODULE) N times with torchrun, or once for "
        "each visible GPU if N is `gpus`  [default: start it once, without torchrun]",
    )
    parser.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="fail if fewer GPUs are visible"
    )
    parser.add_argument("--lock", metavar="SHA256", help="fail if the environment has another lock")
    parser.add_argument(
        "--wait", type=float, default=300.0, metavar="S", help="how long to wait for other nodes"
    )
    parser.add_argument(
        "--saves",
        action="store_true",
        help="COMMAND saves a checkpoint and ends on USR1: send it that when the job is stopped",
    )
    add_hang_arguments(parser)
    parser.add_argument("--folder", metavar="DIR", help="where COMMAND starts")
    parser.add_argument(
        "--detach", action="store_true", help="continue without this shell, and write a log"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND")


def add_hang_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hang-after",
        type=float,
        default=300.0,
        metavar="S",
        help="report a hang when all ranks were silent for so long; 0: never",
    )
    parser.add_argument(
        "--on-hang",
        choices=("report", "end", "requeue"),
        default="report",
        help=f"what to do then; end and requeue: end with status {HUNG}",
    )


def options_of(
    parser: argparse.ArgumentParser,
    namespace: argparse.Namespace,
    variables: Mapping[str, str] = os.environ,
) -> JobOptions:
    """Ends the program with status 2 for options that contradict each other."""
    node = namespace.node
    for variable in NODE_VARIABLES:
        if node is None and variables.get(variable, "").isdigit():
            node = int(variables[variable])
    if node is None:
        node = 0
        if namespace.nodes > 1:
            parser.error(f"--node is missing, and so is {' and '.join(NODE_VARIABLES)}")
    if not 0 <= node < namespace.nodes:
        parser.error(f"node {node} is none of {namespace.nodes}, which are counted from 0")
    if namespace.nodes > 1 and node > 0 and not namespace.head:
        parser.error("--head is missing: the other nodes must find node 0")
    names = namespace.names
    if names and len(names) != namespace.nodes:
        parser.error(f"--names has {len(names)} names for {namespace.nodes} nodes")
    key = variables.get(KEY_VARIABLE, "").strip()
    if namespace.key_stdin:
        key = sys.stdin.readline(LONGEST_KEY).strip()
    if namespace.nodes > 1 and len(key) < SHORTEST_KEY:
        parser.error(
            f"the job's key is missing, or has less than {SHORTEST_KEY} characters: set "
            f"{KEY_VARIABLE} to a random text, the same on every node (openssl rand -hex 32)"
        )
    name = namespace.name or (names[node] if names else None)
    for variable in NAME_VARIABLES:
        name = name or variables.get(variable)
    return JobOptions(
        id=namespace.id,
        command=tuple(namespace.command),
        nodes=namespace.nodes,
        node=node,
        name=name or socket.gethostname(),
        names=names,
        heads=namespace.head,
        port=namespace.port,
        ranks=namespace.ranks,
        gpus=namespace.gpus,
        lock=namespace.lock,
        wait_s=namespace.wait,
        saves=namespace.saves,
        hang_after_s=namespace.hang_after,
        on_hang=namespace.on_hang,
        shares_log="SLURM_STEP_ID" in variables,
        key=key.encode(),
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _ranks(text: str) -> int:
    if text == "gpus":
        return max(1, libraries.visible_gpus(os.environ))
    return _positive(text)


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError(text)
    return number
