"""Which deviating nodes a ship can mend, and what it must be told of them. Pure but for `distrust`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from provision.cluster import actions
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, NodeDefaults
from provision.cluster.remote import run_action
from provision.core.documents import DriftRecord
from provision.verbs.drift.comparison import DISTRIBUTION, FILES, INSTALLED
from provision.workflow.ship.stages import RunIdentity

STAGE = "distrust"
TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Repair:
    """key: what the nodes should have active. nodes: those that have another environment, none, or
    other files: a ship mends that, but no driver and no kernel. changed: those of them whose
    environment has the right key, but other files."""

    key: str
    nodes: tuple[str, ...]
    changed: tuple[str, ...]


def plan_repair(record: DriftRecord) -> Repair | None:
    """record: of `provision drift`. None if no environment has a majority."""
    reference = None
    for fact in record["facts"]:
        if fact["name"] == INSTALLED:
            reference = fact["reference"]
    if reference is None:
        return None
    nodes, changed = [], []
    for node in record["nodes"]:
        differing = node.get("differs", {})
        if INSTALLED in differing:
            nodes.append(node["name"])
        elif any(name == FILES or name.startswith(DISTRIBUTION) for name in differing):
            nodes.append(node["name"])
            changed.append(node["name"])
    return Repair(key=reference, nodes=tuple(nodes), changed=tuple(changed))


def distrust(
    nodes: Sequence[Node], defaults: NodeDefaults, name: str, key: str, identity: RunIdentity
) -> dict[str, NodeFailure]:
    """Make nodes forget that their environment was verified; returns why some could not.

    Otherwise a ship would find the environment active, and do nothing.
    """
    run = {**asdict(identity), **defaults.rules}
    arguments = {"path": str(defaults.path), "name": name, "key": key, "run": run}
    replies = run_action(
        nodes,
        actions.STORE_DISTRUST,
        arguments,
        stage=STAGE,
        timeout_s=TIMEOUT_S,
        defaults=defaults,
    )
    return {reply.node.name: reply.failure for reply in replies if reply.failure is not None}
