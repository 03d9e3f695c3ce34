"""What `provision doctor` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision_runtime.report import diagnosis
from provision_runtime.report.diagnosis import ObservedFinding
from provision_runtime.report.table import terminal_width
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.verbs.doctor.doctor import NodesDiagnosis


def nodes_lines(result: NodesDiagnosis) -> list[str]:
    """Each finding once, with all nodes that have it; then the nodes that could not be examined."""
    from provision.adapters.clustershell import fold
    from provision.cli.node_sets import failure_lines

    nodes_of: dict[tuple[str, str], list[str]] = {}
    examples: dict[tuple[str, str], ObservedFinding] = {}
    for node, document in result.diagnoses.items():
        for finding in document["findings"]:
            key = (finding["id"], finding["message"])
            nodes_of.setdefault(key, []).append(node)
            examples.setdefault(key, finding)
    lines = []
    for finding in diagnosis.worst_first(examples.values()):
        lines.append(fold(nodes_of[(finding["id"], finding["message"])]))
        lines += diagnosis.finding_lines(finding, terminal_width())
    clean = [node for node, document in result.diagnoses.items() if not document["findings"]]
    lines += failure_lines(result.failures, terminal_width())
    if clean:
        lines.append(f"{fold(clean)}  no findings")
    total = format_count(len(result.diagnoses) + len(result.failures), "node")
    failed = f", {len(result.failures)} not examined" if result.failures else ""
    return [*lines, f"{total}: {len(clean)} without findings{failed}"]
