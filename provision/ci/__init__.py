"""CI on self-hosted GPU runners: runners.yml -> the runners of each environment, with reasons ->
the values of the templates.

Reads only runners.yml; contacts no runner and no CI service.
"""

from __future__ import annotations

from provision.ci.assignment import CiTarget, Job, assign, misfits
from provision.ci.runners import (
    FILE,
    Across,
    Runner,
    RunnersFile,
    WorkflowSettings,
    read_runners,
)
from provision.ci.workflow import (
    WorkflowPaths,
    check_jobs,
    job_matrices,
    summary,
    template_values,
)
