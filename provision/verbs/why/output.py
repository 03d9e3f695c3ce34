"""What `provision why` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.text import home_path
from provision_runtime.hang import page
from provision_runtime.report.table import wrapped
from provision_runtime.report.text import escape_line

if TYPE_CHECKING:
    from provision.verbs.why.why import WhyResult


def lines(result: WhyResult, width: int | None) -> list[str]:
    """A page for each job, those that hang last: the end of a terminal is what is read."""
    pages = [
        [*page.lines(job, width), ""]
        for job in sorted(result.jobs, key=lambda job: job.verdict != "no-hang")
    ]
    for note in result.nodes:
        state = "unknown, and so are its ranks: " if note.is_unknown else ""
        pages.append(wrapped(f"node     {note.node}: {state}{escape_line(note.message)}", width, 9))
    return [line for lines in pages for line in lines] + [f"stacks   {home_path(result.stacks)}"]
