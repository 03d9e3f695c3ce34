"""Options of command lines that are stated once, in a data file: for argparse here, and for click in
provision."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from ..dataclass import frozen


@frozen
class Option:
    """kind: of its value, a key of the parsers; a flag has none. dest: where its name does not say
    it."""

    name: str
    help: str = ""
    kind: str = ""
    metavar: str | None = None
    default: Any = None
    required: bool = False
    multiple: bool = False
    dest: str | None = None


def add_options(
    parser: argparse.ArgumentParser,
    options: Iterable[Option],
    parsers: Mapping[str, Callable[[str], Any]],
) -> None:
    for option in options:
        if not option.kind:
            parser.add_argument(option.name, action="store_true", help=option.help)
            continue
        parser.add_argument(
            option.name,
            action="append" if option.multiple else "store",
            type=parsers[option.kind],
            default=[] if option.multiple else option.default,
            required=option.required,
            metavar=option.metavar,
            help=option.help,
            **({"dest": option.dest} if option.dest else {}),
        )
