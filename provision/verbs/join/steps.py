"""The steps of joining a lab, and how each stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from provision.core.dataclass import frozen

StepName = Literal[
    "lab", "account", "ssh", "folders", "shell", "environments", "kernels", "first-job"
]
# done; warning: it works, and something should be looked at; open: it did not work; pending: it has
# not been done (by --dry-run, or because an earlier step is open).
StepStatus = Literal["done", "warning", "open", "pending"]
_SEVERITY: tuple[StepStatus, ...] = ("done", "warning", "pending", "open")

STEPS: Mapping[StepName, str] = {
    "lab": "read the lab's repository",
    "account": "look at your account: home, quota, groups",
    "ssh": "reach the login hosts",
    "folders": "put large files where the lab has room",
    "shell": "look for shell settings that get in the way",
    "environments": "install the lab's environments",
    "kernels": "register Jupyter kernels",
    "first-job": "run a first job",
}


@frozen
class Note:
    """One thing that a step has to say. advice: what to do about it, often a command."""

    status: StepStatus
    message: str
    advice: str = ""


def settled(message: str) -> Note:
    return Note(status="done", message=message)


def pending(message: str) -> Note:
    return Note(status="pending", message=message)


def warning(message: str, advice: str = "") -> Note:
    return Note(status="warning", message=message, advice=advice)


def unsettled(message: str, advice: str = "") -> Note:
    return Note(status="open", message=message, advice=advice)


@frozen
class StepResult:
    """How a step stands. changed: whether it changed anything now."""

    step: StepName
    notes: tuple[Note, ...]
    changed: bool = False

    @property
    def status(self) -> StepStatus:
        statuses = [note.status for note in self.notes]
        return max(statuses, key=_SEVERITY.index, default="done")

    @property
    def is_open(self) -> bool:
        """Whether the member is not ready before this is settled."""
        return self.status in ("open", "pending")
