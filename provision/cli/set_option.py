"""`--set KEY=VALUE`: the settings of a verb that few need, as one option.

A dataclass declares them, a field each; the verb gets an instance of it. `--help` lists them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from provision.cli.options import Command

Settings = TypeVar("Settings")
AT_LEAST_ONE = click.IntRange(1)


def setting(kind: click.ParamType[Any] | type, help: str, *, default: Any = None) -> Any:
    """The declaration of a field. A tuple as its default takes a value each time that it is set."""
    metadata = {"kind": click.types.convert_type(kind), "help": help}
    return dataclasses.field(default=default, metadata=metadata)


def read_settings(kind: type[Settings], texts: Sequence[str]) -> Settings:
    """The settings of these texts KEY=VALUE. Raises click.BadParameter."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        field = fields.get(key)
        if field is None or not sign:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE. Keys: {', '.join(fields)}.")
        try:
            converted = field.metadata["kind"].convert(value, None, None)
        except click.BadParameter as error:
            raise click.BadParameter(f"{key}: {error.message}") from error
        if field.default == ():
            converted = (*values.get(key, ()), converted)
        elif key in values:
            raise click.BadParameter(f"{key} is set twice.")
        values[key] = converted
    return kind(**values)


class SetOption(click.Option):
    """The option, and the settings that it takes."""

    def __init__(self, *declarations: Any, settings: type, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.settings = settings

    def help_rows(self) -> list[tuple[str, str]]:
        fields = dataclasses.fields(self.settings)
        return [(field.name, field.metadata["help"]) for field in fields]


def set_option(kind: type) -> Callable[[Command], Command]:
    """`--set`; the verb gets an instance of the dataclass as `settings`."""

    def read(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> object:
        return read_settings(kind, texts)

    return click.option(
        "--set",
        "settings",
        cls=SetOption,
        settings=kind,
        multiple=True,
        metavar="KEY=VALUE",
        callback=read,
        help="A setting, listed below. Repeatable.",
    )
