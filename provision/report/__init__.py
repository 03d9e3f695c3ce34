"""Passports and smoke reports -> one page: what an environment is and why, what was measured in
it. And a page of nodes that were compared (`nodes`).

`load` checks files by their schemas, `page` says what they hold. The page's words are the
template's. Everything but `load` is pure.
"""

from __future__ import annotations

from provision.report.load import EvidenceFile, load, load_nodes
from provision.report.nodes import deviating_facts, nodes_values
from provision.report.page import Page, build_page, template_values
