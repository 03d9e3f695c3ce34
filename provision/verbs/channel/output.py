"""The text of `provision channel mirror`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision_runtime.report.text import format_bytes

if TYPE_CHECKING:
    from provision.verbs.channel.mirror import MirrorResult


def mirror_lines(result: MirrorResult) -> list[str]:
    """What a mirror holds and what was done; a dry run lists each file."""
    fetched, removed = len(result.fetched), len(result.removed)
    if result.dry_run:
        lines = [f"would fetch {path}" for path in result.fetched]
        lines += [f"would remove {path}" for path in result.removed]
        summary = f"{fetched} of {result.files} files to fetch, {removed} to remove"
        return [*lines, f"{result.folder}: {summary}"]
    changes = f"{fetched} fetched, {result.kept} kept"
    if removed:
        changes += f", {removed} removed"
    size = format_bytes(result.bytes)
    return [f"{result.folder}: {result.files} files, {size} ({changes})"]
