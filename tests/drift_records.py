"""Records of `provision drift`, from facts that a test states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import NodeSelection
from provision.verbs.drift import record as drift_record
from provision.verbs.drift.comparison import ExpectedNode, ObservedNode, Value, compare
from provision.verbs.drift.survey import DriftRequest, DriftSurvey

DRIVER, KERNEL = "535.183.01", "5.15.0-1053-aws"


def facts(**changes: Value) -> ObservedNode:
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
        "clock": 0.0,
    }
    return ObservedNode(values={**values, **changes})


def record(
    nodes: Mapping[str, ObservedNode],
    failures: Mapping[str, NodeFailure] | None = None,
    expectation: ExpectedNode | None = None,
    **fields: Any,
) -> Any:
    """What the comparison writes. failures: nodes that gave no answer; they come last."""
    failures = failures or {}
    survey = DriftSurvey(
        request=DriftRequest(name="train", deep=True),
        selection=NodeSelection(text="a100", nodes=()),
        nodes=(*nodes, *failures),
        failures=failures,
        facts=tuple(compare(nodes, expectation)),
        **{
            "distributions": None,
            "unexplained": (),
            "is_shared": False,
            "has_files": True,
            "clock_s": 0.0,
            **fields,
        },
    )
    return drift_record.compose(survey, expectation, "2026-01-01T00:00:00+00:00")


def cluster(count: int, **deviating: ObservedNode) -> dict[str, ObservedNode]:
    """Nodes n0001, n0002, ... that are equal but for those that are named."""
    nodes = {f"n{number:04}": facts() for number in range(1, count + 1)}
    return {**nodes, **deviating}


def timed_out(message: str = "no answer within the time limit") -> NodeFailure:
    return NodeFailure(stage="drift", reason="timed-out", message=message)
