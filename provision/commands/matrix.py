"""`provision matrix`: a question in words -> the table in a format; a request -> why it comes to what it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.cli.format import table as formats
from provision.commands import request
from provision.core.errors import InvalidSpec
from provision.resolver import Explanation
from provision.resolver import explain as why
from provision.resolver.query import parse_query
from provision.resolver.spec import check_name, combine
from provision.resolver.table import Table, build_table


def show(options: Mapping[str, Any]) -> Table:
    """The builds that fit."""
    return build_table(parse_query(options))


def written(found: Table, format: str) -> str:
    """The table as table, csv, markdown or html."""
    if format == "csv":
        return formats.as_csv(found)
    if format == "html":
        from provision.render import render_table

        return render_table(formats.page(found))
    return "\n".join(formats.markdown(found) if format == "markdown" else formats.text(found))


def explain(envs: Path, name: str | None, options: Mapping[str, Any]) -> Explanation:
    """`provision matrix explain`: why a request, or an environment of that name, is what it is. Asks no channel."""
    if name is None:
        wanted = combine({}, options, name="")
    else:
        from provision.render import SPEC

        path = envs / check_name(name) / SPEC
        if not path.exists() and not options.get("torch"):
            raise InvalidSpec(
                f"There is no {path}.", advice="Name another, or give --torch and --cuda."
            )
        wanted = request.combined(path, options, name=name)
    return why(request.checked(wanted), request.machine_for(wanted))
