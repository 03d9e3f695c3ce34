"""`provision why`: the ranks on this machine, what they wait for, and the cause.

The runtime reads the ranks and judges them; here is which of them, and where the stacks are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.errors import CheckFailed, InvalidSpec
from provision.workflow.context import Context
from provision.workflow.project import require_prefix
from provision_runtime.hang import model
from provision_runtime.hang.collect import ProcessSelection, collect
from provision_runtime.hang.diagnosis import NO_HANG, HangDiagnosis, diagnose

KEPT_FILES = 20


@frozen
class NodeNote:
    """is_unknown: the node did not respond, so its ranks are unknown."""

    node: str
    message: str
    is_unknown: bool = False


@frozen
class WhyResult:
    """jobs: a diagnosis of each; stacks: the file with all that was read; nodes: of a launched job, those
    that did not respond, and what doctor says of those whose ranks the others wait for."""

    jobs: tuple[HangDiagnosis, ...]
    stacks: Path
    nodes: tuple[NodeNote, ...] = ()

    @property
    def exit_code(self) -> int:
        are_unknown = any(note.is_unknown for note in self.nodes)
        return int(are_unknown or any(job.verdict != NO_HANG for job in self.jobs))


def examine(context: Context, subject: str) -> WhyResult:
    """Look at the ranks of a process, a folder or an environment; at all of this user by default.

    Raises CheckFailed if there is none, InvalidSpec or ToolMissing for a subject that there is not.
    """
    with context.progress.meter("looking at ranks", 0):
        snapshot = collect(_selection(context, subject))
    if not snapshot.ranks:
        raise CheckFailed(
            f"None of your ranks{f' of {subject}' if subject else ''} runs on this machine, and none "
            f"has left a record in the last day{''.join(f'; {note}' for note in snapshot.notes)}.",
            advice="A rank is a Python process with RANK or LOCAL_RANK, and WORLD_SIZE, in its "
            "environment. Ranks of other users need root and their PID: provision why PID.",
        )
    return WhyResult(jobs=tuple(diagnose([snapshot])), stacks=keep_stacks(context, [snapshot]))


def keep_stacks(context: Context, snapshots: Sequence[model.Snapshot]) -> Path:
    """Write what was read into a file. The last KEPT_FILES of them stay."""
    name = time.strftime("%Y-%m-%d-%H%M%S")
    path = context.folders.data / "why" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(
        path, json.dumps([model.to_json(snapshot) for snapshot in snapshots], indent=1) + "\n"
    )
    for old in sorted(path.parent.glob("????-??-??-??????.json"))[:-KEPT_FILES]:
        old.unlink(missing_ok=True)
    return path


def _selection(context: Context, subject: str) -> ProcessSelection:
    if subject.isdigit():
        if not Path(f"/proc/{subject}").exists():
            raise InvalidSpec(
                f"There is no process {subject}.", advice="`provision why` lists yours."
            )
        return ProcessSelection(pid=int(subject))
    if "/" in subject or subject in (".", ".."):
        if not Path(subject).is_dir():
            raise InvalidSpec(f"There is no folder {subject}.", advice="Name one, or a PID.")
        return ProcessSelection(folder=str(Path(subject).resolve()))
    prefix = str(require_prefix(context.folders, subject).path) if subject else ""
    return ProcessSelection(prefix=prefix)
