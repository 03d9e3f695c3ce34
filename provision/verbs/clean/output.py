"""The text of `provision clean`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.console import table
from provision.cli.text import home_path, short_size
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.verbs.clean.clean import Removable


def removable_lines(items: Sequence[Removable], *, width: int | None) -> list[str]:
    """What can go: a row each, then what that frees."""
    if not items:
        return ["nothing to clean"]
    rows = [
        (item.kind, short_size(item.usage.size), short_size(item.usage.freed), home_path(item.path))
        for item in items
    ]
    freed = sum(item.usage.freed for item in items)
    total = f"{format_count(len(items), 'item')}, frees {short_size(freed)}"
    return [table(rows, ("kind", "size", "frees", "what"), width=width), "", total]
