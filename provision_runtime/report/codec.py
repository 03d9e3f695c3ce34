"""Reads dataclasses from JSON documents, of other processes and machines or written for ourselves, and
checks every field; and data that are shipped with a package."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

# In messages.
_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}
# `X | None` of Python 3.10.
_UNIONS = (Union, getattr(types, "UnionType", Union))
_type_hints = lru_cache(maxsize=None)(get_type_hints)


@lru_cache(maxsize=None)
def packaged_json(package: str, name: str) -> Any:
    """The data of a file beside a package's modules. In the program that a node runs from its
    standard input, there are no files."""
    import pkgutil

    return json.loads(pkgutil.get_data(package, name) or "null")


def decode(kind: Any, value: Any, entry: str, skips_unknown: bool = False) -> Any:
    """A JSON value as a dataclass, a NamedTuple (a list in JSON), a List or Tuple of them, a Dict (of
    texts or whole numbers, which JSON has as texts), a path, a text, one of some literals, a number or an
    Optional of these.

    skips_unknown: also fields that are not known, and takes the default of an absent list or dict.

    Raises ValueError, which names the entry, for another type, an unknown field, or a missing one that
    has no default. In this package annotations must be those that
    Python 3.8 can evaluate: List, not list.
    """
    if kind is Any or kind is type(value):
        return value
    if is_dataclass(kind):
        return _decode_object(kind, value, entry, skips_unknown)
    if hasattr(kind, "_fields"):
        if not isinstance(value, list) or len(value) != len(kind._fields):
            raise ValueError(
                f"at {entry}: it is {value!r:.80}, not a list of {len(kind._fields)} values"
            )
        hints = [(name, _type_hints(kind)[name]) for name in kind._fields]
        return kind(
            *(decode(t, item, f"{entry}.{n}", skips_unknown) for (n, t), item in zip(hints, value))
        )
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in _UNIONS:
        return None if value is None else decode(arguments[0], value, entry, skips_unknown)
    if origin is Literal and value not in arguments:
        raise ValueError(f"at {entry}: it is {value!r:.80}, not one of {arguments}")
    if origin is Literal:
        return value
    if kind is Path and isinstance(value, str):
        return Path(value)
    if origin in (list, tuple) and isinstance(value, list):
        if arguments[0] is str and {*map(type, value)} == {str}:
            return origin(value)
        return origin(
            decode(arguments[0], item, f"{entry}[{at}]", skips_unknown)
            for at, item in enumerate(value)
        )
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {
            arguments[0](name): decode(arguments[1], item, f"{entry}.{name}", skips_unknown)
            for name, item in value.items()
        }
    accepted = (int, float) if kind is float else origin
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(
            f"at {entry}: it is {value!r:.80}, not {_NAMES.get(kind, f'a {origin.__name__}')}"
        )
    return value


def _decode_object(kind: Any, value: Any, entry: str, skips_unknown: bool) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"at {entry}: it is {value!r:.80}, not an object")
    hints = _type_hints(kind)
    for name in value:
        if name not in hints and not skips_unknown:
            raise ValueError(f"at {entry}: there is no field {name}")
    content = {}
    for field in fields(kind):
        path = f"{entry}.{field.name}"
        if field.name in value:
            content[field.name] = decode(hints[field.name], value[field.name], path, skips_unknown)
        elif field.default is MISSING and not (skips_unknown and callable(field.default_factory)):
            raise ValueError(f"at {entry}: the field {field.name} is missing")
    return kind(**content)
