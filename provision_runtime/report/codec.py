"""Reads dataclasses from JSON documents of other processes and machines, and checks every field; and
data that are shipped with a package."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

# In messages.
_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}
_type_hints = lru_cache(maxsize=None)(get_type_hints)


@lru_cache(maxsize=None)
def packaged_json(package: str, name: str) -> Any:
    """The data of a file beside a package's modules. In the program that a node runs from its
    standard input, there are no files."""
    return json.loads(pkgutil.get_data(package, name) or "null")


def decode(kind: Any, value: Any, entry: str) -> Any:
    """A JSON value as a dataclass, a NamedTuple (a list in JSON), a List or Tuple of them, a Dict (of
    texts or whole numbers, which JSON has as texts), a text, a number or an Optional of these.

    Raises ValueError, which names the entry, for another type, an unknown field, or a missing one
    that has no default. Annotations must be those that Python 3.8 can evaluate: List, not list.
    """
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _decode_object(kind, value, entry)
    if hasattr(kind, "_fields"):
        if not isinstance(value, list) or len(value) != len(kind._fields):
            raise ValueError(
                f"at {entry}: it is {value!r:.80}, not a list of {len(kind._fields)} values"
            )
        types = [(name, _type_hints(kind)[name]) for name in kind._fields]
        return kind(*(decode(t, item, f"{entry}.{n}") for (n, t), item in zip(types, value)))
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Union:
        return None if value is None else decode(arguments[0], value, entry)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(decode(arguments[0], item, f"{entry}[{at}]") for at, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {
            arguments[0](name): decode(arguments[1], item, f"{entry}.{name}")
            for name, item in value.items()
        }
    accepted = (int, float) if kind is float else origin
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(
            f"at {entry}: it is {value!r:.80}, not {_NAMES.get(kind, f'a {origin.__name__}')}"
        )
    return value


def _decode_object(kind: Any, value: Any, entry: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"at {entry}: it is {value!r:.80}, not an object")
    types = _type_hints(kind)
    for name in value:
        if name not in types:
            raise ValueError(f"at {entry}: there is no field {name}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise ValueError(f"at {entry}: the field {field.name} is missing")
    return kind(
        **{name: decode(types[name], item, f"{entry}.{name}") for name, item in value.items()}
    )
