"""What the steps of `provision join` share: the lab, the member's folders, and whether to act."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.core import settings
from provision.core.errors import ProvisionError
from provision.core.mirrors import merge_settings, parse_mirror
from provision.core.paths import default_folders
from provision.core.project import project_folder
from provision.core.system_errors import from_system
from provision.core.types import Progress
from provision.verbs.join.steps import Note, unsettled
from provision.workflow.context import Context, solver_of
from provision.workflow.examination import examine_account
from provision.workflow.lab_definition import Lab, LabEnvironment
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision_runtime.report.diagnosis import ObservedFinding

# The variables that go before settings, by the settings' keys.
VARIABLES = {"data": "PROVISION_DATA", "cache": "PROVISION_CACHE", "tmp": "TMPDIR"}


@dataclass(kw_only=True)
class JoinRun:
    """One run for one lab. act: whether steps may change anything."""

    lab: Lab
    progress: Progress
    act: bool
    changed: bool = False  # by the step that runs
    _context: Context | None = None
    _findings: list[ObservedFinding] | None = None
    _plans: dict[str, Plan] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        """Folders and mirrors as they are once the lab's settings are written."""
        if self._context is None:
            options = merge_settings(
                settings.mirror_settings([]),
                [parse_mirror(text, self.lab.folder) for text in self.lab.mirrors],
            )
            folders = default_folders(self.lab.envs)
            data, cache = self.named_folder("data"), self.named_folder("cache")
            data_path = data[0] if data else folders.data
            self._context = Context(
                folders=replace(
                    folders,
                    data=data_path,
                    cache=cache[0] if cache else folders.cache,
                    templates=self.lab.folder / "templates",
                    project=project_folder(data_path, folders.envs),
                ),
                progress=self.progress,
                get_solver=solver_of(options),
            )
        return self._context

    def named_folder(self, key: str) -> tuple[Path, str] | None:
        """A folder that the lab or the member names, and who: the member's own settings and
        variables go before the lab's. None if neither names it."""
        variable = VARIABLES[key]
        value = os.environ.get(variable)
        if value and value != str(self.lab.folders.get(key)):
            return Path(value).absolute(), variable
        personal_folders = settings.folder_settings(without=settings.joined_file())
        if key in personal_folders:
            return personal_folders[key], "your own settings"
        if key in self.lab.folders:
            return self.lab.folders[key], ""
        return None

    def account_findings(self, ids: Sequence[str]) -> list[ObservedFinding]:
        """What doctor says of this account; examined once."""
        if self._findings is None:
            self._findings = examine_account(ids)
        return self._findings

    def refresh(self) -> None:
        """Look at folders and prefixes anew."""
        self._context = None
        self._plans.clear()

    def plan(self, environment: LabEnvironment) -> Plan:
        """What the lab's repository says of an environment. Raises InvalidSpec and the like."""
        if environment.name not in self._plans:
            request = BuildRequest(name=environment.name)
            self._plans[environment.name] = make_plan(self.context, request)
        return self._plans[environment.name]


def notes_of(problem: ProvisionError | OSError, subject: str = "") -> Note:
    """An error as the note of a step that goes on with the rest."""
    error = from_system(problem) if isinstance(problem, OSError) else problem
    message = f"{subject}: {error.message}" if subject else error.message
    return unsettled(message.rstrip("."), advice=error.advice)


def guarded(work: Iterator[Note], subject: str = "") -> list[Note]:
    """The notes of a piece of work, up to the error that ends it, which becomes one."""
    notes = []
    try:
        for note in work:
            notes.append(note)
    except (ProvisionError, OSError) as error:
        notes.append(notes_of(error, subject))
    return notes
