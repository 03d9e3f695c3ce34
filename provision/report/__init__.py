"""Passports and smoke reports -> one page: what an environment is and why, what was measured in
it. And a page of nodes that were compared (`nodes`).

`load` checks files by their schemas, `measures` knows the phases' measurements, `model` is what
the page says (also as `--json`), `page` fills it. The page's words are the template's. Everything
but `load` is pure.
"""

from __future__ import annotations

from provision.report import measures
from provision.report.load import EvidenceFile, load, load_nodes
from provision.report.model import Page
from provision.report.nodes import deviating_facts, nodes_values
from provision.report.page import build_page
from provision_runtime.report.table import name_ranks
from provision_runtime.report.text import format_bytes, format_count


def template_values(page: Page) -> dict[str, object]:
    """The values of templates/report.html.j2."""
    runs = format_count(len(page.measurements), "run")
    return {
        "page": page,
        "headline": f"{page.title}, {page.verdict}, {runs} of the smoke test",
        "name_ranks": name_ranks,
        "format_bytes": format_bytes,
        "format_value": measures.format_value,
        "factor": measures.factor,
        "shade": measures.shade,
    }
