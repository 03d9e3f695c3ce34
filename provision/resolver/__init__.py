"""Spec -> Resolution: exact versions and pins with reasons, from the facts alone. Pure: no network, no clock, no machine.

A combination that does not exist is refused with the nearest ones that do; nothing is ever rounded. `cells` is what exists, `checks`
whether a candidate is what is asked for, `choose` which one is meant, `refuse` and `nearest` what to say where there is none, `pins`,
`choices` and `extras` what follows from the choice, `resolve` all of it, `explain` why.
"""

from __future__ import annotations

from provision.resolver.candidate import SOURCES
from provision.resolver.explanation import Explanation, explain
from provision.resolver.python_versions import DEFAULT_PYTHON
from provision.resolver.resolution import resolve

__all__ = ["DEFAULT_PYTHON", "SOURCES", "Explanation", "explain", "resolve"]
