"""Options that say what an environment shall be, and which builds of the table are meant; made from
the keys in `core/spec_fields.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from provision import sources
from provision.cli.options import mirror_options, option_group
from provision.core.spec_fields import DEFAULT_PACKAGE_KEYS, QUERY_KEYS, SPEC_KEYS, SpecKey

Decorator = Callable[[Any], Any]

QUERY_OPTIONS = tuple(key.name for key in QUERY_KEYS)


def option_of(key: SpecKey) -> Decorator:
    """The option that sets a key."""
    option = key.option or f"--{key.name}"
    settings: dict[str, Any] = {"help": key.help, "metavar": key.metavar}
    if key.default:
        settings["help"] += f"  [default: {key.default}]"
    choices = sources.allowed_choices(key)
    if choices:
        settings["type"] = click.Choice(choices)
    if key.is_list:
        settings["multiple"] = True
    elif key.kind == "switch":
        settings["is_flag"] = True
    elif key.kind == "flag":
        option = f"{option}/{key.negative_option}"
        settings["default"] = None  # not given, which leaves the answer to spec.yml
    return click.option(option, key.name, **settings)


request_options = option_group(*(option_of(key) for key in SPEC_KEYS), mirror_options)
companion_options = option_group(*(option_of(key) for key in DEFAULT_PACKAGE_KEYS))
query_options = option_group(*(option_of(key) for key in QUERY_KEYS))
