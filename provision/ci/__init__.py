"""CI over a lab's own GPU runners: runners.yml -> which runner each environment's job goes to, and why -> what the templates show.

Pure but for reading runners.yml: nothing is asked of a runner or of a CI service.
"""

from __future__ import annotations

from provision.ci.assignment import CiTarget, Job, assign, misfits
from provision.ci.runners import Runner, read_runners
from provision.ci.workflow import FORMATS, WorkflowFormat, WorkflowSettings, template_values

__all__ = [
    "FORMATS",
    "CiTarget",
    "Job",
    "Runner",
    "WorkflowFormat",
    "WorkflowSettings",
    "assign",
    "misfits",
    "read_runners",
    "template_values",
]
