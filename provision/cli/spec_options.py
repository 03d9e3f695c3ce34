"""Options that say what an environment shall be, and which builds of the table are meant; made from
the keys in `core/spec_fields.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from provision.cli.options import mirror_options, option_group
from provision.core.spec_fields import DEFAULT_PACKAGE_KEYS, QUERY_KEYS, SPEC_KEYS, SpecKey

Decorator = Callable[[Any], Any]

# Kinds of keys that have only some values.
KINDS_WITH_CHOICES = ("source", "sources")


class SourceChoice(click.Choice[str]):
    """The names of the sources, which are read when a verb needs them and not for `--help`.

    Importing the sources reads the catalog, which takes as long as everything else in `--help`.
    """

    def __init__(self, key: SpecKey) -> None:
        self._key = key
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        from provision import sources

        return sources.allowed_choices(self._key)


QUERY_OPTIONS = tuple(key.name for key in QUERY_KEYS)


def option_of(key: SpecKey) -> Decorator:
    """The option that sets a key."""
    option = key.option or f"--{key.name}"
    settings: dict[str, Any] = {"help": key.help, "metavar": key.metavar}
    if key.default:
        settings["help"] += f"  [default: {key.default}]"
    if key.kind in KINDS_WITH_CHOICES:
        settings["type"] = SourceChoice(key)
    elif key.choices:
        settings["type"] = click.Choice(key.choices)
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
