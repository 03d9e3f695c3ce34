"""`provision store`: what the stores of nodes hold, who changed them, and cleaning them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic

from provision.cluster import actions
from provision.cluster.actions import Action, ResultT
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import NodeSelection
from provision.cluster.remote import run_action, split_replies
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.resolver import spec as specs
from provision.workflow.context import Context
from provision.workflow.ship.ship import run_identity
from provision_runtime.node.results import IS_ACTIVE, RemovedEnvironments

# A tree of 36,000 files is read wholly for its size.
TIMEOUT_S = 120.0
KEY = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")


@frozen
class StoreReport(Generic[ResultT]):
    """What each node replied, or why it did not."""

    nodes: Mapping[str, ResultT]
    failures: Mapping[str, NodeFailure]


def ask(
    selection: NodeSelection, action: Action[ResultT], **arguments: object
) -> StoreReport[ResultT]:
    """The replies of nodes to a question about their stores."""
    replies = run_action(
        selection.nodes,
        action,
        {"path": str(selection.defaults.path), **arguments},
        stage="store",
        timeout_s=TIMEOUT_S,
        defaults=selection.defaults,
    )
    nodes, failures = split_replies(replies)
    return StoreReport(nodes=nodes, failures=failures)


def remove(
    context: Context, selection: NodeSelection, name_or_key: str, *, active_too: bool, dry_run: bool
) -> StoreReport[RemovedEnvironments]:
    """Remove an environment from nodes: one key, or all that have a name."""
    match = KEY.fullmatch(name_or_key)
    name = specs.check_name(match["name"] if match else name_or_key)
    if selection.defaults.store == "shared" and not dry_run:
        raise InvalidSpec(
            "Nothing is removed from a store that nodes share: no node sees the jobs and mounts of "
            "the others.",
            advice=f"When no job uses it: unmount it on every node, then remove {name_or_key} by hand.",
        )
    report = ask(
        selection,
        actions.STORE_REMOVE,
        name=name,
        keys=[name_or_key] if match else [],
        active_too=active_too,
        dry_run=dry_run,
        run={**run_identity(context), **selection.defaults.rules},
    )
    results = report.nodes.values()
    if not report.failures and not any(row["removed"] or row["retained"] for row in results):
        raise InvalidSpec(
            f"No node of `{selection.text}` has {name_or_key}.",
            advice=f"`provision store list {selection.options()}` shows what they have.",
        )
    return report


def is_done(report: StoreReport[RemovedEnvironments]) -> bool:
    """Whether all went that should: an active one stays among several."""
    results = report.nodes.values()
    is_hindered = any(set(result["retained"].values()) - {IS_ACTIVE} for result in results)
    removes_any = any(result["removed"] for result in results)
    return removes_any and not is_hindered and not report.failures
