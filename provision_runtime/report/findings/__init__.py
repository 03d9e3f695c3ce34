"""Every finding that the smoke test, `doctor`, `why` and a job's log can report: how bad it is, what it
means, and what to do; and the errors of programs that are known.

The ids are part of the reports' contract: scripts and dashboards act on them. All are in
findings.json. docs/findings.md is generated from it; a check compares the two.
"""

from __future__ import annotations

from .catalog import BY_AREA as BY_AREA
from .catalog import BY_PHASE as BY_PHASE
from .catalog import CATALOG as CATALOG
from .catalog import ERRORS as ERRORS
from .catalog import FAIL as FAIL
from .catalog import JOBS as JOBS
from .catalog import TMPDIR_LENGTH as TMPDIR_LENGTH
from .catalog import UNKNOWN as UNKNOWN
from .catalog import WARN as WARN
from .catalog import Finding as Finding
from .catalog import Rule as Rule
from .catalog import has_lost_peer as has_lost_peer
from .catalog import known_error as known_error
