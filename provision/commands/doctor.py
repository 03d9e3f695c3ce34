"""`provision doctor`: known faults of this machine, of nodes, and of batch scripts.

The runtime looks, in a process of its own; here is what runs it, and what its answers come to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import NodeSelection
from provision.cluster.remote import merge_same_nodes, run_action
from provision.commands.context import Context, refuse_mistyped_name
from provision.commands.env import require_prefix
from provision.core import process
from provision.core.errors import InvalidSpec, ToolFailed
from provision.core.json_text import parse_json
from provision.resolver import spec as specs
from provision_runtime.report import diagnosis, model
from provision_runtime.report.findings import CATALOG

# A deep look imports torch, which can take minutes from a cold network file system.
TIMEOUT_S = 30.0
DEEP_TIMEOUT_S = 400.0


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """only: ids of findings; empty for all."""

    only: tuple[str, ...] = ()
    is_deep: bool = False

    @property
    def timeout_s(self) -> float:
        return DEEP_TIMEOUT_S if self.is_deep else TIMEOUT_S


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


def examine_account(ids: Sequence[str]) -> list[Mapping[str, Any]]:
    """The findings of these ids here, without an environment."""
    document = _examine("", DoctorRequest(only=tuple(ids)))
    findings: list[Mapping[str, Any]] = document["findings"]
    return findings


def _examine(prefix: str, request: DoctorRequest) -> dict[str, Any]:
    arguments = ["--prefix", prefix, "--json"]
    if request.is_deep:
        arguments.append("--deep")
    for id in request.only:
        arguments += ["--only", id]
    return _run_doctor(arguments, request.timeout_s)


def examine_script(path: Path) -> dict[str, Any]:
    """The document about a batch script or training program."""
    if not path.is_file():
        raise InvalidSpec(f"There is no file {path}.", advice="Name a batch script or program.")
    return _run_doctor(["--script", str(path), "--json"], TIMEOUT_S)


def _run_doctor(arguments: Sequence[str], timeout_s: float) -> dict[str, Any]:
    # The probes judge the variables that the user has. Python itself ignores its own (-E): modules in
    # PYTHONPATH must not replace those that doctor imports.
    command = [sys.executable, "-E", "-S", str(files("provision_runtime")), "doctor"]
    result = process.run([*command, *arguments], env=os.environ, timeout_s=timeout_s, check=False)
    try:
        document: dict[str, Any] = parse_json(result.stdout)
    except ValueError as error:
        raise ToolFailed(command, result.returncode, result.stderr or result.stdout) from error
    return document


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
            selection,
            "doctor",
            arguments,
            stage="check",
            timeout_s=request.timeout_s,
            on_answer=lambda _: meter.advance(1),
        )
    documents = {}
    failures = {}
    for answer in merge_same_nodes(answers):
        if answer.failure is not None:
            failures[answer.node.name] = answer.failure
        elif answer.result is not None:
            documents[answer.node.name] = answer.result
    return NodesDiagnosis(documents=documents, failures=failures)
