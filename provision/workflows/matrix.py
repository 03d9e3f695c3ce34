"""`provision matrix`: a question in words -> the table in a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.pipeline.table import Table, formats, question, table


def show(options: Mapping[str, Any]) -> Table:
    """The builds that fit."""
    return table(question(options))


def written(found: Table, format: str) -> str:
    """The table as table, csv, markdown or html."""
    if format == "csv":
        return formats.as_csv(found)
    if format == "html":
        from provision.pipeline.render import render_table

        return render_table(formats.page(found))
    return "\n".join(formats.markdown(found) if format == "markdown" else formats.text(found))
