"""Options that all verbs share: declared once, and accepted before and after the verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

# What was typed after the verb, in `meta` of its context.
ARGUMENTS = "provision.arguments"


def _share(context: click.Context, option: click.Parameter, value: Any) -> Any:
    if value:
        context.meta[f"provision.{option.name}"] = value
    return value


def shared_option(*declarations: str, **attributes: Any) -> click.Option:
    return click.Option(declarations, expose_value=False, callback=_share, **attributes)


# Declared once, and accepted before and after the verb.
SHARED_OPTIONS = (
    shared_option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    shared_option(
        "-v", "--verbose", is_flag=True, help="Also show the output of solvers and other tools."
    ),
    shared_option("-q", "--quiet", is_flag=True, help="Print only results, warnings and errors."),
    shared_option("--debug", is_flag=True, help="Show the traceback of an error."),
    shared_option(
        "--envs",
        type=click.Path(path_type=Path),
        help="Folder of environments.  [default: PROVISION_ENVS, else envs]",
    ),
)


def shared_value(context: click.Context, name: str) -> Any:
    """The value of a shared option; None if it was not given."""
    return context.meta.get(f"provision.{name}")


# Of `provision --help`. docs/errors.md explains them; a test compares them with the errors.
EXIT_CODES = (
    "Exit codes: 0 fine, 1 a check failed, 2 usage, 3 invalid spec, 4 no such build, 5 unsolvable, "
    "6 stale lock, 7 wrong bytes, 8 unreachable, 9 tool missing, 10 tool failed, 11 disk full, "
    "12 in use, 13 timed out, 14 the system refused, 130 interrupted."
)
