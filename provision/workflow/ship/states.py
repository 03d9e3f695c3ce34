"""The state of each node in a shipment, and the rules over all of them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from provision.cluster.failures import REASONS, NodeFailure
from provision.cluster.inventory import Node, Nodes
from provision.core.errors import InvalidSpec

# pending: not asked yet. fit: it could take the image. shipped: the image is there, and not verified
# yet. verified: its bytes are right. passed: it is installed and its Python starts. active: jobs use
# it. unknown: it did not respond in time, so it may be in any state up to the one it was asked for.
State = Literal["pending", "fit", "shipped", "verified", "passed", "active", "failed", "unknown"]

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_PLACE = re.compile("(rack|zone):")


@dataclass(kw_only=True)
class NodeState:
    """failure: for failed and unknown, what happened. method: by which the environment was installed.
    note: why only the account that ships can start it. ends_at_boot: a restart ends the mount for good.
    removed: older environments; in_use: those that would be removed, and stay because jobs use them."""

    state: State = "pending"
    failure: NodeFailure | None = None
    method: str | None = None
    note: str = ""
    ends_at_boot: bool = False
    removed: Sequence[str] = ()
    in_use: Sequence[str] = ()

    def __str__(self) -> str:
        if self.failure is None:
            return self.state
        return f"{self.state}:{self.failure.stage}:{self.failure.reason}"

    def reach(self, state: State) -> None:
        self.state, self.failure = state, None

    def fail(self, failure: NodeFailure) -> None:
        self.state = "unknown" if REASONS[failure.reason].is_unknown else "failed"
        self.failure = failure


def is_transient(failure: NodeFailure | None) -> bool:
    return failure is not None and REASONS[failure.reason].is_transient


def required_nodes(minimum: str, total: int, option: str = "--min") -> int:
    """How many of the nodes an option demands: `all`, a share like `95%`, or a number.

    Raises InvalidSpec for another text, and for more nodes than there are.
    """
    percent = _PERCENT.fullmatch(minimum)
    if minimum == "all":
        return total
    if percent and 0 < float(percent[1]) <= 100:
        return math.ceil(total * float(percent[1]) / 100)
    if not minimum.isdecimal() or int(minimum) == 0:
        raise InvalidSpec(
            f"{option} `{minimum}` is not a number of nodes.", advice="Write `all`, `95%` or `12`."
        )
    if int(minimum) > total:
        raise InvalidSpec(
            f"{option} {minimum} demands more nodes than the {total} that are in service.",
            advice="Write `all`, `95%` or a smaller number; --include-down uses the others too.",
        )
    return int(minimum)


def expand_waves(texts: Sequence[str], nodes: Nodes) -> tuple[str, ...]:
    """The waves of `--canary`, each with a number of nodes, `rack:NAME` or `zone:NAME`. `racks` and
    `zones` are one wave for each.

    Raises InvalidSpec for a text that is none of these, and for a place where no node stands.
    """
    waves = []
    for text in map(str.strip, texts):
        if text in ("racks", "zones"):
            kind = text.removesuffix("s")
            locations = dict.fromkeys(filter(None, (getattr(node, kind) for node in nodes)))
            waves += [f"{kind}:{location}" for location in locations] or [f"{kind}:"]
        else:
            waves.append(text)
    for wave in waves:
        if not _PLACE.match(wave):
            required_nodes(wave, len(nodes), "--canary")
            continue
        kind, _, location = wave.partition(":")
        if not location or all(getattr(node, kind) != location for node in nodes):
            raise InvalidSpec(
                f"--canary {','.join(texts)}: no node of --on stands in `{wave}`.",
                advice="`provision nodes list` shows racks.",
            )
    return tuple(waves)


def plan_waves(waves: Sequence[str], nodes: Nodes, total: int | None = None) -> list[list[Node]]:
    """Which nodes each wave activates. nodes: those that are ready, of `total` (None: all); a number
    counts the nodes of the waves before, too."""
    total = len(nodes) if total is None else total
    planned, remaining = [], list(nodes)
    for text in waves:
        if _PLACE.match(text):
            kind, _, location = text.partition(":")
            wave = [node for node in remaining if location and getattr(node, kind) == location]
        else:
            count = required_nodes(text, total, "--canary") - (len(nodes) - len(remaining))
            wave = remaining[: max(count, 0)]
        names = {node.name for node in wave}
        remaining = [node for node in remaining if node.name not in names]
        planned.append(wave)
    return planned
