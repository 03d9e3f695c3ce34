"""What `provision init` and `provision import` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.account import account_lines
from provision.cli.console import output_width, wrap_line

if TYPE_CHECKING:
    from provision.verbs.init.init import Proposal


def proposal_lines(proposal: Proposal) -> list[str]:
    """The spec, what it comes to, what became of each line, and what to check."""
    resolution, width = proposal.resolution, output_width()
    body = [line for line in proposal.text.splitlines() if not line.startswith("#")]
    lines = [f"{proposal.name}, from {proposal.source}:", ""]
    lines += [f"  {line}" for line in body]
    device = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
    build = f"torch {resolution.torch} for {device}, Python {resolution.python}"
    lines += ["", f"which is {build} ({resolution.source})"]
    for note in proposal.notes:
        lines += wrap_line(f"  - {note}", width)
    lines += account_lines(proposal.account)
    if proposal.unread_files:
        unread = ", ".join(proposal.unread_files)
        note = f"  - not read: {unread}; `provision import FILE` takes another"
        lines += wrap_line(note, width)
    return [*lines, ""]


def written_lines(proposal: Proposal) -> list[str]:
    """The file that was written, and the next command."""
    return [
        f"wrote {proposal.path}; commit it in your repository",
        f"next: provision build {proposal.name}",
    ]
