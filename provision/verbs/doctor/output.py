"""What `provision doctor` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from provision_runtime.report import diagnosis
from provision_runtime.report.findings import CATALOG
from provision_runtime.report.table import terminal_width
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.verbs.doctor.doctor import NodesDiagnosis


def lines(document: Mapping[str, Any]) -> list[str]:
    return diagnosis.lines(document, terminal_width())


def explain_lines(id: str) -> list[str]:
    return diagnosis.explain_lines(id, terminal_width())


def explain_json(id: str) -> dict[str, Any]:
    return {"id": id, **asdict(CATALOG[id])}


def nodes_lines(result: NodesDiagnosis) -> list[str]:
    """Each finding once, with all nodes that have it; then the nodes that could not be examined."""
    from provision.adapters.clustershell import fold
    from provision.cluster.failures import REASONS
    from provision.cluster.folding import fold_failures

    nodes_of: dict[tuple[str, str], list[str]] = {}
    examples: dict[tuple[str, str], Mapping[str, Any]] = {}
    for node, document in result.documents.items():
        for finding in document["findings"]:
            key = (finding["id"], finding["message"])
            nodes_of.setdefault(key, []).append(node)
            examples.setdefault(key, finding)
    printed = []
    for finding in diagnosis.worst_first(examples.values()):
        nodes = nodes_of[(finding["id"], finding["message"])]
        printed.append(f"{fold(nodes)}")
        printed += diagnosis.finding_lines(finding, terminal_width())
    for folded, failure in fold_failures(result.failures.items()):
        printed.append(f"{folded}  {failure.reason}: {failure.message}")
        printed.append(f"         {REASONS[failure.reason].advice}")
    clean = [node for node, document in result.documents.items() if not document["findings"]]
    if clean:
        printed.append(f"{fold(clean)}  no findings")
    total = len(result.documents) + len(result.failures)
    others = f", {len(result.failures)} not examined" if result.failures else ""
    printed.append(f"{format_count(total, 'node')}: {len(clean)} without findings{others}")
    return printed


def nodes_json(result: NodesDiagnosis) -> dict[str, Any]:
    return {"nodes": result.documents, "failures": result.failures}
