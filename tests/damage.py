"""Documents with one value changed or removed, for tests of what reads them."""

from __future__ import annotations

import copy
from typing import Any

NOTHING = object()


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value in a document; of a list only its first and last."""
    keys = [path]
    if isinstance(value, dict):
        keys += [inner for key, item in value.items() for inner in paths(item, (*path, key))]
    elif isinstance(value, list) and value:
        keys += [
            inner for place in {0, len(value) - 1} for inner in paths(value[place], (*path, place))
        ]
    return keys


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at that place; NOTHING takes it out."""
    whole = copy.deepcopy(document)
    holder = whole
    for step in path[:-1]:
        holder = holder[step]
    if value is NOTHING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return whole
