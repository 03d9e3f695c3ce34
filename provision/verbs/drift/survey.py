"""Asks nodes for what may drift, in two rounds; the replies compared are a document: `provision drift
--json` prints it, a file keeps it, and `provision report --nodes` draws it
(provision/schemas/drift.schema.json).

The first round brings each node's facts and one digest of its environment. Only where digests
differ does a second round ask for the digest of each distribution: one node for each different
environment. So a thousand equal nodes send one digest each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone

from provision import __version__
from provision.adapters.clustershell import fold
from provision.cluster import actions
from provision.cluster.actions import Action, ResultT
from provision.cluster.failures import REASONS, NodeFailure
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.remote import NodeReply, run_action, split_replies
from provision.core.dataclass import frozen
from provision.core.documents import DriftNode, DriftRecord
from provision.verbs.drift.comparison import (
    DIGEST_DIGITS,
    DISTRIBUTION,
    FILES,
    INSTALLED,
    TITLES,
    compare,
)
from provision_runtime.node.results import DriftFacts

KIND, SCHEMA = "drift", 1
# Reading 5 GB takes a node 10 s of a CPU, and minutes from a cold network file system.
TIMEOUT_S, DEEP_TIMEOUT_S = 60.0, 1800.0
# The facts that only a node with the environment has.
OF_INSTALLED = ("lock", FILES, "nccl")

# Distribution -> what a node has of it, as text.
Distributions = Mapping[str, str]


@frozen
class DriftRequest:
    """What to compare.

    name: of the environment. prefix: its folder on the nodes, if it is not in their store. deep:
    read every byte of its files. root: the folder above /proc, /sys and /etc on the nodes.
    """

    name: str
    selection: NodeSelection
    prefix: str = ""
    deep: bool = False
    root: str = "/"

    @property
    def is_shared(self) -> bool:
        """Whether all nodes read the same files."""
        return self.selection.defaults.store == "shared" and not self.prefix

    def run(
        self,
        nodes: Sequence[Node],
        action: Action[ResultT],
        on_reply: Callable[[NodeReply[ResultT]], None] | None = None,
        **arguments: object,
    ) -> list[NodeReply[ResultT]]:
        location = {
            "path": str(self.selection.defaults.path),
            "name": self.name,
            "prefix": self.prefix,
            "deep": self.deep,
        }
        return run_action(
            nodes,
            action,
            {**location, **arguments},
            stage="drift",
            timeout_s=DEEP_TIMEOUT_S if self.deep else TIMEOUT_S,
            defaults=self.selection.defaults,
            on_reply=on_reply,
        )


def survey(
    request: DriftRequest, on_reply: Callable[[NodeReply[DriftFacts]], None] | None = None
) -> DriftRecord:
    """Both rounds, and the comparison. on_reply: called with each reply of the first round."""
    nodes, failures = _first_round(request, on_reply)
    # Nodes with the same environment: by its digest, or by its key if they share one store.
    groups: dict[str, list[str]] = {}
    for name, node in nodes.items():
        identity = node["facts"].get(INSTALLED if request.is_shared else FILES)
        if isinstance(identity, str):
            groups.setdefault(identity, []).append(name)
    details = _second_round(request, groups) if len(groups) > 1 else {}
    return compose(request, nodes, failures, groups, details)


def _first_round(
    request: DriftRequest, on_reply: Callable[[NodeReply[DriftFacts]], None] | None
) -> tuple[dict[str, DriftFacts], dict[str, NodeFailure]]:
    # Where all nodes read the same files, one of them does it, in the second round.
    replies = request.run(
        request.selection.nodes,
        actions.DRIFT_FACTS,
        on_reply,
        digests=not request.is_shared,
        root=request.root,
    )
    nodes, failures = split_replies(replies)
    for node in nodes.values():
        facts = node["facts"]
        # What a node must send, or list as unread.
        left_out = [FILES] if request.is_shared else []
        if INSTALLED in facts and facts[INSTALLED] is None:
            left_out += OF_INSTALLED
        for fact in (fact for titles in TITLES.values() for fact in titles):
            if fact not in facts and fact not in left_out:
                node["unread"].setdefault(fact, "the node does not say it")
    return nodes, failures


def _second_round(
    request: DriftRequest, groups: Mapping[str, Sequence[str]]
) -> dict[str, Distributions]:
    """The distributions of each group, from its first node; without groups of which that does not
    reply."""
    by_name = {node.name: node for node in request.selection.nodes}
    representatives = [by_name[members[0]] for members in groups.values()]
    details: dict[str, Distributions] = {}
    for digest, reply in zip(groups, request.run(representatives, actions.DISTRIBUTIONS)):
        # An environment that changed between the rounds speaks for nobody else.
        result = reply.result
        if result is not None and digest in (result["files"], result["environment"]):
            details[digest] = {
                name: describe_distribution(*row) for name, row in result["distributions"].items()
            }
    return details


def describe_distribution(version: str, digest: str) -> str:
    """Equal for two nodes exactly if they have the same files of a distribution."""
    files = digest[:DIGEST_DIGITS]
    return f"{version} (files {files})" if version else f"digest {files}"


def compose(
    request: DriftRequest,
    nodes: Mapping[str, DriftFacts],
    failures: Mapping[str, NodeFailure],
    groups: Mapping[str, Sequence[str]],
    details: Mapping[str, Distributions],
) -> DriftRecord:
    """The document of what nodes replied. details: the distributions of each group of nodes with the
    same files, if there are several."""
    notes = []
    if request.is_shared:
        notes.append("The nodes share one store: its files were not compared from node to node.")
    elif not request.deep and any(FILES in node["facts"] for node in nodes.values()):
        notes.append("Files were compared by records and sizes; --deep compares every byte.")
    distributions = sorted({name for rows in details.values() for name in rows})
    for name in distributions:
        if len({rows.get(name) for rows in details.values()}) > 1:
            for digest, rows in details.items():
                for node in groups[digest]:
                    nodes[node]["facts"][DISTRIBUTION + name] = rows.get(name)
    unexplained: list[str] = []
    for digest in groups if len(groups) > 1 else ():
        if digest not in details:
            unexplained += groups[digest]
    if details and not unexplained:
        # The distributions tell the same in detail, and each has a majority of its own.
        for observed in nodes.values():
            observed["facts"].pop(FILES, None)
    if unexplained:
        notes.append(
            f"{fold(unexplained)}: the files differ, but no node could list the distributions."
        )
    facts, described = compare(nodes)
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, failure in failures.items():
        if failure.reason == "same-node":
            notes.append(f"{failure.message}; it was compared once.")
        else:
            kinds.setdefault((failure.stage, failure.reason), []).append(name)
            described[name] = {"name": name, "verdict": "unknown", "failure": failure.reason}
    ordered: list[DriftNode] = [
        described[node.name] for node in request.selection.nodes if node.name in described
    ]
    verdicts = Counter(node["verdict"] for node in ordered)
    counts = {kind: verdicts[kind] for kind in ("same", "drift", "unknown")}
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "made_by": f"provision {__version__}",
        "written_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "name": request.name,
        "on": request.selection.text,
        "path": request.prefix or str(request.selection.defaults.path / request.name),
        "deep": request.deep,
        "verdict": next((kind for kind in ("drift", "unknown") if counts[kind]), "same"),
        "counts": {"nodes": len(ordered), **counts},
        "distributions": len(distributions) or None,
        "facts": facts,
        # The message of the first node stands for all of its kind: ssh names the host in most.
        "failures": [
            {
                "nodes": fold(names),
                **asdict(failures[names[0]]),
                "meaning": REASONS[reason].meaning,
                "advice": REASONS[reason].advice,
            }
            for (_, reason), names in sorted(kinds.items(), key=lambda kind: -len(kind[1]))
        ],
        "notes": notes,
        "nodes": ordered,
    }
