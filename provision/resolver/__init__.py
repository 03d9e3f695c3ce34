"""Spec -> Resolution: exact versions and pins with reasons, from the facts alone.

Pure: no network, no clock, no machine.

A combination that does not exist is refused with the nearest ones that do; nothing is ever rounded.
`spec` reads a request, `constraints` decides whether a candidate meets it, `select` which candidate
it means, `refusal` and `suggest` what to say if there is none; `pins` and `rationale` follow from
the choice, `resolution` joins them, `explanation` says why. `table` answers queries about all
builds.
"""

from __future__ import annotations

from provision.resolver.explanation import Explanation, explain
from provision.resolver.python_versions import DEFAULT_PYTHON
from provision.resolver.resolution import build_known_to_run, resolve, warning_ids
from provision.resolver.select import for_machine, possible_releases, with_each_cuda
