"""Records of `provision drift`, from facts that a test states."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, NodeSelection
from provision.verbs.drift.comparison import Value
from provision.verbs.drift.survey import DriftRequest, compose
from provision_runtime.node.results import DriftFacts

DRIVER, KERNEL = "535.183.01", "5.15.0-1053-aws"


def observed(values: Mapping[str, Value], unread: Mapping[str, str] | None = None) -> DriftFacts:
    return {"facts": dict(values), "unread": dict(unread or {})}


def facts(**changes: Value) -> DriftFacts:
    """A node's facts; changes: those that are not usual."""
    values: dict[str, Value] = {
        "environment": "train-0123456789ab",
        "lock": "a" * 64,
        "files": "b" * 64,
        "driver": DRIVER,
        "gpus": "8 x NVIDIA H100 80GB HBM3",
        "sharp": None,
        "kernel": KERNEL,
        "memory": 2 << 40,
    }
    return observed({**values, **changes})


def record(
    nodes: Mapping[str, DriftFacts],
    failures: Mapping[str, NodeFailure] | None = None,
) -> Any:
    """What the comparison writes. failures: nodes that gave no answer; they come last."""
    failures = failures or {}
    listed = tuple(Node(name=name, engine="ssh", address=name) for name in (*nodes, *failures))
    selection = NodeSelection(text="a100", nodes=listed)
    request = DriftRequest(name="train", selection=selection, deep=True)
    return compose(request, nodes, failures, {}, {})


def selection_of(document: Any, inventory: Path | None = None) -> NodeSelection:
    """The nodes of a record, which Slurm names."""
    nodes = [Node(name=row["name"], engine="slurm", address="") for row in document["nodes"]]
    return NodeSelection(text=document["on"], nodes=tuple(nodes), inventory=inventory)


def cluster(count: int, **deviating: DriftFacts) -> dict[str, DriftFacts]:
    """Nodes n0001, n0002, ... that are equal but for those that are named."""
    nodes = {f"n{number:04}": facts() for number in range(1, count + 1)}
    return {**nodes, **deviating}


def timed_out(message: str = "no answer within the time limit") -> NodeFailure:
    return NodeFailure(stage="drift", reason="timed-out", message=message)
