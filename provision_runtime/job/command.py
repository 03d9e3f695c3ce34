"""The options of `python -m provision_runtime job`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, Callable, Dict

from ..facts import libraries
from ..report.codec import packaged_json
from ..report.options import Option, add_options
from .node import KEY_VARIABLE, JobOptions

# Where engines say which node of the job this is: Slurm, an Indexed Job of Kubernetes.
NODE_VARIABLES = ("SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK")
NAME_VARIABLES = ("SLURMD_NODENAME", "NODE_NAME")
# Characters of the job's key, 128 bits in hexadecimal, and of the line that is read.
SHORTEST_KEY, LONGEST_KEY = 32, 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, "job")
    add_hang_arguments(parser)
    parser.add_argument("command", nargs="+", metavar="COMMAND")


def add_hang_arguments(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, "hang")


def _add_options(parser: argparse.ArgumentParser, section: str) -> None:
    rows = packaged_json(__package__, "options.json")[section]
    add_options(parser, [Option(**row) for row in rows], PARSERS)


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
        parser.error(f"node {node} is not one of {namespace.nodes}, which are counted from 0")
    if namespace.nodes > 1 and node > 0 and not namespace.heads:
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
    names_of_fields = JobOptions.__dataclass_fields__.keys() & vars(namespace).keys()
    values = {field: getattr(namespace, field) for field in names_of_fields}
    values.update(command=tuple(namespace.command), node=node, name=name or socket.gethostname())
    shares_log = "SLURM_STEP_ID" in variables
    return JobOptions(**values, shares_log=shares_log, key=key.encode())


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


def _on_hang(text: str) -> str:
    if text not in ("report", "end", "requeue"):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of report, end, requeue.")
    return text


PARSERS: Dict[str, Callable[[str], Any]] = {
    "text": str,
    "number": int,
    "seconds": float,
    "count": _positive,
    "list": _list,
    "ranks": _ranks,
    "on_hang": _on_hang,
}
