"""A survey as a document: `provision drift --json` prints it, a file keeps it, and `provision
report --nodes` draws it. provision/schemas/drift.schema.json defines its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from provision import __version__
from provision.adapters.clustershell import fold
from provision.cluster.failures import REASONS, NodeFailure
from provision.cluster.folding import fold_failures
from provision.core.documents import DriftFact, DriftNode, DriftRecord
from provision.verbs.drift.comparison import (
    CLOCK_TOLERANCE_S,
    ComparedFact,
    ExpectedNode,
    NodeVerdict,
)
from provision.verbs.drift.survey import DriftSurvey

KIND, SCHEMA = "drift", 1


def compose(survey: DriftSurvey, expectation: ExpectedNode | None, written_at: str) -> DriftRecord:
    """The document of a survey. written_at: ISO 8601."""
    failures = {}
    notes = _notes(survey)
    for node, failure in survey.failures.items():
        if failure.reason == "same-node":
            notes.append(f"{failure.message}; it was compared once.")
        else:
            failures[node] = failure
    nodes = _describe_nodes(survey, failures)
    counts = {"nodes": len(nodes)}
    for verdict in ("same", "drift", "unknown"):
        counts[verdict] = sum(node["verdict"] == verdict for node in nodes)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "made_by": f"provision {__version__}",
        "written_at": written_at,
        "name": survey.request.name,
        "on": survey.selection.text,
        "path": survey.request.prefix or str(survey.selection.defaults.path / survey.request.name),
        "deep": survey.request.deep,
        "expected": expectation.source if expectation else None,
        "verdict": _overall(counts),
        "counts": counts,
        "distributions": survey.distributions,
        "facts": [_describe_fact(fact) for fact in survey.facts],
        "failures": _describe_failures(failures),
        "notes": notes,
        "nodes": nodes,
    }


def _overall(counts: Mapping[str, int]) -> NodeVerdict:
    if counts["drift"]:
        return "drift"
    if counts["unknown"]:
        return "unknown"
    return "same"


def _describe_nodes(survey: DriftSurvey, failures: Mapping[str, NodeFailure]) -> list[DriftNode]:
    """Every node with what it has instead of the reference, what could not be read or compared, and
    why it did not reply."""
    differing: dict[str, dict[str, str]] = {}
    unread: dict[str, dict[str, str]] = {}
    without: dict[str, list[str]] = {}
    responding = [node for node in survey.nodes if node not in survey.failures]
    for fact in survey.facts:
        compared = set(fact.agreeing)
        for deviation in fact.deviations:
            compared.update(deviation.nodes)
            for node in deviation.nodes:
                differing.setdefault(node, {})[fact.name] = deviation.value
        for reason, names in fact.unread:
            compared.update(names)
            for node in names:
                unread.setdefault(node, {})[fact.name] = reason
        for node in responding:
            if node not in compared:
                without.setdefault(node, []).append(fact.name)
    described: list[DriftNode] = []
    for node in survey.nodes:
        entry: DriftNode = {"name": node, "verdict": "same"}
        if node in failures:
            entry |= {"verdict": "unknown", "failure": failures[node].reason}
        elif node in survey.failures:
            continue
        if node in unread:
            entry |= {"verdict": "unknown", "unread": unread[node]}
        if node in without:
            entry["without"] = without[node]
        if node in differing:
            entry |= {"verdict": "drift", "differs": differing[node]}
        described.append(entry)
    return described


def _describe_fact(fact: ComparedFact) -> DriftFact:
    return {
        "name": fact.name,
        "title": fact.title,
        "group": fact.group,
        "reference": fact.reference,
        "basis": fact.basis,
        "minimum": fact.minimum,
        "count": len(fact.agreeing),
        "deviations": [
            {
                "value": deviation.value,
                "nodes": fold(deviation.nodes),
                "count": len(deviation.nodes),
                "is_below": deviation.is_below,
            }
            for deviation in fact.deviations
        ],
        "unread": [
            {"reason": reason, "nodes": fold(nodes), "count": len(nodes)}
            for reason, nodes in fact.unread
        ],
    }


def _describe_failures(failures: Mapping[str, NodeFailure]) -> list[dict[str, str]]:
    return [
        {"nodes": nodes, **asdict(failure), **asdict(REASONS[failure.reason])}
        for nodes, failure in fold_failures(failures.items())
    ]


def _notes(survey: DriftSurvey) -> list[str]:
    """What a reader must know to judge the result."""
    notes = []
    if survey.is_shared:
        notes.append("The nodes share one store: its files were not compared from node to node.")
    elif not survey.request.deep and survey.has_files:
        notes.append("Files were compared by records and sizes; --deep compares every byte.")
    if survey.clock_s is not None and abs(survey.clock_s) > CLOCK_TOLERANCE_S:
        direction = "behind" if survey.clock_s > 0 else "ahead of"
        notes.append(f"This machine's clock is {abs(survey.clock_s):.1f} s {direction} the nodes'.")
    if survey.unexplained:
        nodes = fold(survey.unexplained)
        notes.append(f"{nodes}: the files differ, but no node could list the distributions.")
    return notes
