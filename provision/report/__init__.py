"""Passports and smoke reports -> one page: what an environment is and why, what was measured in
it, and how runs differ. And a page of nodes that were compared (`nodes`).

`load` checks files by their schemas, `measures` knows the phases' measurements, `model` is what
the page says (also as `--json`), `page` fills it, `comparison` finds differences, `charts`
computes charts and heat maps. The page's words are the template's. Everything but `load` is pure.
"""

from __future__ import annotations

from provision.report import charts
from provision.report.load import EvidenceFile, load, load_nodes
from provision.report.markdown import markdown_summary
from provision.report.model import Page
from provision.report.nodes import NodesPage, build_nodes_page, nodes_template_values
from provision.report.page import build_page
from provision_runtime.report.table import name_ranks

__all__ = [
    "EvidenceFile",
    "NodesPage",
    "Page",
    "build_nodes_page",
    "build_page",
    "load",
    "load_nodes",
    "markdown_summary",
    "nodes_template_values",
    "template_values",
]

VALUES_HEAD = (
    "run",
    "type",
    "size",
    "time",
    "p99",
    "algbw, GB/s",
    "busbw, GB/s",
    "slowest rank",
    "judged",
)


def template_values(page: Page) -> dict[str, object]:
    """The values of templates/report.html.j2."""
    # What the page compares: the kind, a heading, and the labels of what is compared.
    comparisons = []
    if len(page.environments) > 1:
        names = [environment.name for environment in page.environments]
        comparisons.append(("environment", "Between the environments", names))
    if len(page.measurements) > 1:
        labels = [measurement.label for measurement in page.measurements]
        comparisons.append(("measurement", "Between the runs of the smoke test", labels))
    return {
        "page": page,
        "comparisons": comparisons,
        "figures": charts.figures(page),
        "heat_maps": charts.heat_maps(page),
        "frame": charts.FRAME,
        "row_head": VALUES_HEAD,
        "name_ranks": name_ranks,
    }
