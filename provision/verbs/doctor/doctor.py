"""`provision doctor`: known faults of this machine, of nodes, and of batch scripts.

The runtime looks, in a process of its own; here is what runs it, and what its answers come to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.cluster import actions
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import NodeSelection
from provision.cluster.remote import merge_same_nodes, run_action
from provision.core.errors import InvalidSpec
from provision.resolver import spec as specs
from provision.workflow.context import Context, refuse_mistyped_name
from provision.workflow.examination import TIMEOUT_S, DoctorRequest, _examine, _run_doctor
from provision.workflow.installed import require_prefix
from provision_runtime.report import diagnosis, model
from provision_runtime.report.findings import CATALOG


@dataclass(frozen=True, kw_only=True)
class NodesDiagnosis:
    """What doctor says about nodes, by node. documents: of those that were examined; failures: why the
    others were not."""

    documents: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, NodeFailure]

    @property
    def exit_code(self) -> int:
        codes = []
        for document in self.documents.values():
            verdicts = [finding["verdict"] for finding in document["findings"]]
            codes.append(diagnosis.exit_code(model.overall([document["verdict"], *verdicts])))
        failed = any(failure.reason != "same-node" for failure in self.failures.values())
        return max([*codes, int(failed)])


def check_ids(ids: Sequence[str]) -> None:
    """Raise InvalidSpec for an id that no finding has."""
    import difflib

    for id in ids:
        if id not in CATALOG:
            similar = difflib.get_close_matches(id, CATALOG, n=3)
            advice = f"Similar: {', '.join(similar)}." if similar else "docs/findings.md lists all."
            raise InvalidSpec(f"There is no finding `{id}`.", advice=advice)


def examine_here(
    context: Context, name: str | None, path: Path | None, request: DoctorRequest
) -> dict[str, Any]:
    """The document about this machine, and about an environment on it if one is named.

    Raises ToolMissing if it is not installed, InvalidSpec for a path that is no folder.
    """
    prefix = ""
    if name is not None:
        prefix = str(require_prefix(context, name, path).path)
    elif path is not None:
        if not path.is_dir():
            raise InvalidSpec(f"There is no folder {path}.", advice="--prefix names one.")
        prefix = str(path)
    return _examine(prefix, request)


def examine_script(path: Path) -> dict[str, Any]:
    """The document about a batch script or training program."""
    if not path.is_file():
        raise InvalidSpec(f"There is no file {path}.", advice="Name a batch script or program.")
    return _run_doctor(["--script", str(path), "--json"], TIMEOUT_S)


def examine_nodes(
    context: Context, selection: NodeSelection, name: str | None, request: DoctorRequest
) -> NodesDiagnosis:
    """Examine every node, and the environment that is active there if one is named.

    Raises InvalidSpec for a mistyped name.
    """
    prefix = None
    if name is not None:
        refuse_mistyped_name(context.folders, specs.check_name(name))
        prefix = str(selection.defaults.path / name)
    arguments = {
        "prefix": prefix,
        "only": list(request.only),
        "is_deep": request.is_deep,
        "rules": selection.defaults.rules,
    }
    with context.progress.meter("examining nodes", len(selection.nodes)) as meter:
        answers = run_action(
            selection.nodes,
            actions.DOCTOR,
            arguments,
            stage="check",
            timeout_s=request.timeout_s,
            defaults=selection.defaults,
            on_reply=lambda _: meter.advance(1),
        )
    documents = {}
    failures = {}
    for answer in merge_same_nodes(answers):
        if answer.failure is not None:
            failures[answer.node.name] = answer.failure
        elif answer.result is not None:
            documents[answer.node.name] = answer.result
    return NodesDiagnosis(documents=documents, failures=failures)
