"""CI over a lab's own GPU runners: runners.yml -> which runner each environment's job goes to, and why -> what the templates show.

Pure but for reading runners.yml: nothing is asked of a runner or of a CI service.
"""

from __future__ import annotations

from provision.ci.assignment import Job, Target, assign, misfits
from provision.ci.runners import Runner, read
from provision.ci.workflow import FORMATS, Format, Settings, values

__all__ = [
    "FORMATS",
    "Format",
    "Job",
    "Runner",
    "Settings",
    "Target",
    "assign",
    "misfits",
    "read",
    "values",
]
