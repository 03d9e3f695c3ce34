"""The state of each node in a shipment, and the rules over all of them. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from provision.cluster.failures import NodeFailure
from provision.core.errors import InvalidSpec

# pending: not asked yet. fit: it could take the image. shipped: the image is there, and not verified
# yet. verified: its bytes are right. passed: it is installed and its Python starts. active: jobs use
# it. unknown: it did not answer in time, so it may be in any state up to the one it was asked for.
State = Literal["pending", "fit", "shipped", "verified", "passed", "active", "failed", "unknown"]

# Failures after which nobody knows what the node has done.
UNKNOWN_REASONS = frozenset({"timed-out", "connection-lost", "killed", "bad-answer", "unread"})
# Failures that another try may not have. A host that is down is not tried again: that takes long,
# and --resume does it.
TRANSIENT_REASONS = frozenset(
    {
        "connection-lost",
        "connection-closed",
        "killed",
        "bad-answer",
        "cut-off",
        "wrong-bytes",
        "peer-unreachable",
        "peer-failed",
        "port-in-use",
        "file-system",
        "cannot-unmount",
    }
)
# More nodes than this failing for one reason is no accident of single nodes.
COMMON_SHARE = 0.2
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """failure: for failed and unknown, what happened."""

    state: State
    failure: NodeFailure | None = None

    def __str__(self) -> str:
        if self.failure is None:
            return self.state
        return f"{self.state}:{self.failure.stage}:{self.failure.reason}"


@dataclass(frozen=True, kw_only=True)
class CommonFailure:
    """One reason for which too many nodes failed."""

    failure: NodeFailure
    nodes: tuple[str, ...]
    total: int


def state_of_failure(failure: NodeFailure) -> NodeState:
    if failure.reason in UNKNOWN_REASONS:
        return NodeState(state="unknown", failure=failure)
    return NodeState(state="failed", failure=failure)


def required_nodes(minimum: str, total: int) -> int:
    """How many of the nodes `--min` demands: `all`, a share like `95%`, or a number.

    Raises InvalidSpec for another text, and for more nodes than there are.
    """
    percent = _PERCENT.fullmatch(minimum)
    if minimum == "all":
        return total
    if percent and 0 < float(percent[1]) <= 100:
        return math.ceil(total * float(percent[1]) / 100)
    if not minimum.isdecimal() or int(minimum) == 0:
        raise InvalidSpec(
            f"--min `{minimum}` is not a number of nodes.", advice="Write `all`, `95%` or `12`."
        )
    if int(minimum) > total:
        raise InvalidSpec(
            f"--min {minimum} demands more nodes than the {total} of --on.",
            advice="Write `all`, `95%` or a smaller number.",
        )
    return int(minimum)


def common_failure(states: Mapping[str, NodeState], required: int) -> CommonFailure | None:
    """The reason for which more than a fifth of the nodes failed, and more than may fail by `--min`.

    One node is never a pattern.
    """
    reasons: Counter[tuple[str, str]] = Counter()
    for state in states.values():
        if state.failure is not None:
            reasons[state.failure.stage, state.failure.reason] += 1
    total = len(states)
    for reason, count in reasons.most_common(1):
        if count < 2 or count <= COMMON_SHARE * total or count <= total - required:
            return None
        nodes = []
        for node, state in states.items():
            if state.failure and (state.failure.stage, state.failure.reason) == reason:
                nodes.append(node)
        failure = states[nodes[0]].failure
        assert failure is not None
        return CommonFailure(failure=failure, nodes=tuple(nodes), total=total)
    return None
