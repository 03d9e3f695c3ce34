"""Pickles that hold only numbers, strings, and lists, tuples and dicts of them: unpickling these runs
no code."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

# Operations of a pickle (of protocol 2, as torch writes it) that make values and put them together.
# All others look up names, call what they find, or refer outside.
VALUES = "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE"
CONTAINERS = (
    "EMPTY_LIST EMPTY_DICT APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS"
)
STACK = "PROTO STOP MARK POP POP_MARK BINPUT LONG_BINPUT BINGET LONG_BINGET"
SAFE_OPERATIONS = frozenset(f"{VALUES} {CONTAINERS} {STACK}".split())


def holds_only_data(pickled: bytes) -> bool:
    """Raises whatever pickletools does for what is no pickle."""
    return all(operation.name in SAFE_OPERATIONS for operation, _, _ in pickletools.genops(pickled))


def load(pickled: bytes) -> Any:
    """Raises ValueError for a pickle of anything else, or for what is none."""
    try:
        if holds_only_data(pickled):
            return pickle.loads(pickled)
    except Exception as error:  # whatever pickle and pickletools raise
        raise ValueError(f"it is not a pickle: {error}") from error
    raise ValueError("it is a pickle that could run code")
