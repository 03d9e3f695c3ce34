"""Asks nodes for what may drift, in two rounds, and compares the replies.

The first round brings each node's facts and one digest of its environment. Only where digests
differ does a second round ask for the digest of each distribution: one node for each different
environment. So a thousand equal nodes send one digest each.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from provision.cluster import actions
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import NodeSelection
from provision.cluster.remote import NodeReply, merge_same_nodes, run_action
from provision.verbs.drift.comparison import (
    CLOCK,
    DEFINITIONS,
    DIGEST_DIGITS,
    DISTRIBUTION,
    FILES,
    INSTALLED,
    SETTING,
    ComparedFact,
    ExpectedNode,
    ObservedNode,
    Value,
    clock_offsets,
    compare,
)
from provision_runtime.node.results import DriftFacts

STAGE = "drift"
# How many nodes of one environment are asked for its distributions before we give up.
ATTEMPTS = 3

# The facts that only a node with the environment has.
OF_INSTALLED = ("lock", FILES, "mounted_as", "nccl")

# Distribution -> what a node has of it, as text.
Distributions = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class DriftRequest:
    """What to compare.

    name: of the environment. prefix: its folder on the nodes, if it is not in their store. deep:
    read every byte of its files. timeout_s: for each node. root: the folder above /proc, /sys and
    /etc on the nodes.
    """

    name: str
    prefix: str = ""
    deep: bool = False
    timeout_s: float = 60.0
    root: str = "/"


@dataclass(frozen=True, kw_only=True)
class DriftSurvey:
    """What nodes replied, compared.

    nodes: all that were asked, in their order. failures: of those that gave no reply.
    distributions: how many distributions were compared; None if digests were equal everywhere, or
    if no node replied. unexplained: nodes whose files differ in unlisted distributions.
    is_shared: whether all nodes read one copy of the files. has_files: whether files were compared
    from node to node. clock_s: how far the nodes' clocks are ahead of ours.
    """

    request: DriftRequest
    selection: NodeSelection
    nodes: tuple[str, ...]
    failures: Mapping[str, NodeFailure]
    facts: tuple[ComparedFact, ...]
    distributions: int | None
    unexplained: tuple[str, ...]
    is_shared: bool
    has_files: bool
    clock_s: float | None


def survey(
    selection: NodeSelection,
    request: DriftRequest,
    expectation: ExpectedNode | None = None,
    on_reply: Callable[[NodeReply[DriftFacts]], None] | None = None,
) -> DriftSurvey:
    """Both rounds, and the comparison. on_reply: called with each reply of the first round."""
    nodes, failures = _first_round(selection, request, on_reply)
    is_shared = _is_shared(selection, request)
    # Nodes with the same environment: by its digest, or by its key if they share one store.
    groups: dict[str, list[str]] = {}
    for name, facts in nodes.items():
        identity = facts.values.get(INSTALLED if is_shared else FILES)
        if isinstance(identity, str):
            groups.setdefault(identity, []).append(name)
    has_files = any(FILES in facts.values for facts in nodes.values())
    details: dict[str, Distributions] = {}
    if len(groups) > 1 or (expectation and expectation.names_distributions):
        details = _second_round(selection, request, groups)
    unexplained = []
    for digest, members in groups.items():
        if len(groups) > 1 and digest not in details:
            unexplained += members
    _add_distributions(nodes, groups, details, expectation)
    if details and not unexplained:
        # The distributions tell the same in detail, and each has a majority of its own.
        for facts in nodes.values():
            facts.values.pop(FILES, None)
    clocks = [clock for facts in nodes.values() if isinstance(clock := facts.values[CLOCK], float)]
    return DriftSurvey(
        request=request,
        selection=selection,
        nodes=tuple(node.name for node in selection.nodes),
        failures=failures,
        facts=tuple(compare(nodes, expectation)),
        distributions=len({name for rows in details.values() for name in rows}) or None,
        unexplained=tuple(unexplained),
        is_shared=is_shared,
        has_files=has_files,
        clock_s=statistics.median(clocks) if clocks else None,
    )


def _is_shared(selection: NodeSelection, request: DriftRequest) -> bool:
    return selection.defaults.store == "shared" and not request.prefix


def _first_round(
    selection: NodeSelection,
    request: DriftRequest,
    on_reply: Callable[[NodeReply[DriftFacts]], None] | None,
) -> tuple[dict[str, ObservedNode], dict[str, NodeFailure]]:
    # Where all nodes read the same files, one of them does it, in the second round.
    digests = not _is_shared(selection, request)
    replies = run_action(
        selection.nodes,
        actions.DRIFT_FACTS,
        {**_location(selection, request), "digests": digests, "root": request.root},
        stage=STAGE,
        timeout_s=request.timeout_s,
        defaults=selection.defaults,
        on_reply=on_reply,
    )
    results, failures, intervals = {}, {}, {}
    for reply in merge_same_nodes(replies):
        name = reply.node.name
        if reply.result is not None:
            results[name] = reply.result
            started, ended = reply.result["started"], reply.result["ended"]
            intervals[name] = (ended - reply.received, started - reply.sent)
        elif reply.failure is not None:
            failures[name] = reply.failure
    offsets = clock_offsets(intervals)
    nodes = {}
    for name, result in results.items():
        values: dict[str, Value] = {**result["facts"], CLOCK: offsets[name]}
        for setting, text in result["settings"].items():
            values[SETTING + setting] = text
        unread = dict(result["unread"])
        # What a node must send, or list as unread.
        left_out = [] if digests else [FILES]
        if INSTALLED in values and values[INSTALLED] is None:
            left_out += OF_INSTALLED
        for fact in [fact.name for fact in DEFINITIONS if fact.name not in left_out]:
            if fact not in values:
                unread.setdefault(fact, "the node does not say it")
        nodes[name] = ObservedNode(values=values, unread=unread)
    return nodes, failures


def _location(selection: NodeSelection, request: DriftRequest) -> dict[str, object]:
    return {
        "path": str(selection.defaults.path),
        "name": request.name,
        "prefix": request.prefix,
        "deep": request.deep,
    }


def _second_round(
    selection: NodeSelection, request: DriftRequest, groups: Mapping[str, Sequence[str]]
) -> dict[str, Distributions]:
    """The distributions of each group, from one of its nodes; without groups of which no node
    replies."""
    by_name = {node.name: node for node in selection.nodes}
    details: dict[str, Distributions] = {}
    for attempt in range(ATTEMPTS):
        representatives = {
            digest: by_name[members[attempt]]
            for digest, members in groups.items()
            if digest not in details and attempt < len(members)
        }
        if not representatives:
            break
        replies = run_action(
            list(representatives.values()),
            actions.DISTRIBUTIONS,
            _location(selection, request),
            stage=STAGE,
            timeout_s=request.timeout_s,
            defaults=selection.defaults,
        )
        for digest, reply in zip(representatives, replies):
            # An environment that changed between the rounds speaks for nobody else.
            result = reply.result
            if result is None or digest not in (result["files"], result["environment"]):
                continue
            details[digest] = {
                name: describe_distribution(*row) for name, row in result["distributions"].items()
            }
    return details


def describe_distribution(version: str, digest: str) -> str:
    """Equal for two nodes exactly if they have the same files of a distribution."""
    files = digest[:DIGEST_DIGITS]
    return f"{version} (files {files})" if version else f"digest {files}"


def _add_distributions(
    nodes: Mapping[str, ObservedNode],
    groups: Mapping[str, Sequence[str]],
    details: Mapping[str, Distributions],
    expectation: ExpectedNode | None,
) -> None:
    """Add those distributions that are not the same everywhere to the facts of each node."""
    expected = expectation.exact if expectation else {}
    names = {name for rows in details.values() for name in rows}
    names |= {name.removeprefix(DISTRIBUTION) for name in expected if name.startswith(DISTRIBUTION)}
    differing = []
    for name in sorted(names):
        values: set[Value] = {rows.get(name) for rows in details.values()}
        if DISTRIBUTION + name in expected:
            values.add(expected[DISTRIBUTION + name])
        if len(values) > 1:
            differing.append(name)
    for digest, rows in details.items():
        for node in groups[digest]:
            for name in differing:
                nodes[node].values[DISTRIBUTION + name] = rows.get(name)
