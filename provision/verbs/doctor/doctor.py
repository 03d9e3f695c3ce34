"""`provision doctor`: known faults of this machine, of nodes, and of batch scripts.

A process of the runtime examines; here is what starts it, and what its results come to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from provision.cluster import actions
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import NodeSelection
from provision.cluster.remote import run_action, split_replies
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.resolver import spec as specs
from provision.workflow.context import Context, refuse_mistyped_name
from provision.workflow.examination import TIMEOUT_S, examine, run_doctor
from provision.workflow.project import require_prefix
from provision_runtime.report import diagnosis
from provision_runtime.report.diagnosis import Diagnosis


@frozen
class NodesDiagnosis:
    """By node. diagnoses: of those that were examined; failures: why the others were not."""

    diagnoses: Mapping[str, Diagnosis]
    failures: Mapping[str, NodeFailure]

    @property
    def exit_code(self) -> int:
        """1 as well for a diagnosis whose verdict contradicts its findings."""
        verdicts = [result["verdict"] for result in self.diagnoses.values()]
        verdicts += [diagnosis.verdict_of(result["findings"]) for result in self.diagnoses.values()]
        is_failed = any(failure.reason != "same-node" for failure in self.failures.values())
        return int(is_failed or any(map(diagnosis.exit_code, verdicts)))


def examine_here(
    context: Context, name: str | None, path: Path | None, only: Sequence[str]
) -> Diagnosis:
    """This machine, and an environment on it if one is named.

    Raises ToolMissing if it is not installed, InvalidSpec for a path that is no folder.
    """
    prefix = ""
    if name is not None:
        prefix = str(require_prefix(context.folders, name, path).path)
    elif path is not None:
        if not path.is_dir():
            raise InvalidSpec(f"There is no folder {path}.", advice="--prefix names one.")
        prefix = str(path)
    return examine(prefix, only)


def examine_script(path: Path) -> Diagnosis:
    """A batch script or training program."""
    if not path.is_file():
        raise InvalidSpec(
            f"There is no file {path}.", advice="Name a batch script or program, not a folder."
        )
    return run_doctor(["--script", str(path)])


def examine_nodes(
    context: Context, selection: NodeSelection, name: str | None, only: Sequence[str]
) -> NodesDiagnosis:
    """Examine every node, and the environment that is active there if one is named.

    Raises InvalidSpec for a mistyped name.
    """
    prefix = None
    if name is not None:
        refuse_mistyped_name(context.folders, specs.check_name(name))
        prefix = str(selection.defaults.path / name)
    arguments = {"prefix": prefix, "only": only, "rules": selection.defaults.rules}
    with context.progress.meter("examining nodes", len(selection.nodes)) as meter:
        replies = run_action(
            selection.nodes,
            actions.DOCTOR,
            arguments,
            stage="check",
            timeout_s=TIMEOUT_S,
            defaults=selection.defaults,
            on_reply=lambda _: meter.advance(1),
        )
    results, failures = split_replies(replies)
    return NodesDiagnosis(
        diagnoses={name: cast(Diagnosis, result) for name, result in results.items()},
        failures=failures,
    )
