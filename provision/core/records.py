"""JSON documents that provision writes for itself, as dataclasses: markers, journals, records.

Documents with a published schema are checked by `core.schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from provision.core.json_text import parse_json

T = TypeVar("T")
_types_of = cache(get_type_hints)


def parse_record(kind: type[T], text: str | bytes) -> T:
    """A dataclass from the text of a JSON object, whose other keys are ignored.

    Raises ValueError for a text that is not JSON, a value that is missing, and one of another type
    than its field.
    """
    return cast(T, _value(kind, parse_json(text)))


def _value(kind: Any, value: object) -> object:
    if type(value) is kind:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        types = _types_of(cast(Any, kind))
        fields = {name: _value(types[name], item) for name, item in value.items() if name in types}
        try:
            return cast(Any, kind)(**fields)
        except TypeError as error:
            raise ValueError(str(error)) from error
    if origin is Mapping and isinstance(value, dict):
        return {name: _value(arguments[1], item) for name, item in value.items()}
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item) for item in value)
    if origin is UnionType:
        return value if value is None else _value(arguments[0], value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if origin is Literal and value in arguments:
        return value
    raise ValueError(f"{str(value)[:80]!r} is not of type {kind}")
