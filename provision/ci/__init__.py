"""CI on self-hosted GPU runners: runners.yml -> the runner of each environment's job, with reasons
-> the values of the templates.

Reads only runners.yml; contacts no runner and no CI service.
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
