"""Every finding that the smoke test and `doctor` can report: how bad it is, what it means, and what
to do.

The ids are part of the reports' contract: scripts and dashboards act on them. One module has each
area. docs/findings.md is generated from this registry; a check compares the two.
"""

from __future__ import annotations

from .catalog import BY_AREA as BY_AREA
from .catalog import BY_PHASE as BY_PHASE
from .catalog import CATALOG as CATALOG
from .catalog import Finding as Finding
from .failures import FAILURES as FAILURES
from .rule import FAIL as FAIL
from .rule import UNKNOWN as UNKNOWN
from .rule import WARN as WARN
from .rule import Rule as Rule
