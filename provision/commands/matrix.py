"""`provision matrix`: which builds exist, and why a request comes to the build that it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.commands.plan import check_requirements, combine, machine_for
from provision.core.errors import InvalidSpec
from provision.render import SPEC
from provision.resolver import Explanation
from provision.resolver import explain as explain_spec
from provision.resolver import spec as specs
from provision.resolver.table import Table, build_table, parse_query


def show(options: Mapping[str, Any]) -> Table:
    """The builds that fit the options."""
    return build_table(parse_query(options))


def explain(envs: Path, name: str | None, options: Mapping[str, Any]) -> Explanation:
    """`provision matrix explain`: why an environment, or a request without a name, is what it is.

    Asks no channel.
    """
    if name is None:
        spec = specs.combine({}, options, name="")
    else:
        path = envs / specs.check_name(name) / SPEC
        if not path.exists() and not options.get("torch"):
            raise InvalidSpec(
                f"There is no {path}.", advice="Name another, or give --torch and --cuda."
            )
        spec = combine(path, options, name=name)
    return explain_spec(check_requirements(spec), machine_for(spec))
