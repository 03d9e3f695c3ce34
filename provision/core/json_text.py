"""JSON text -> the document in it, with one kind of error for every text that is not JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

MOST_DEPTH = 100
# What a file's number or a time in nanoseconds needs; Python itself would take 4,300 digits.
_MOST_DIGITS = 19


def parse_json(text: str | bytes) -> Any:
    """The document in the text.

    Raises ValueError for a text that is not JSON (nor are NaN and Infinity), is not UTF-8, or is
    nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_first_json(text: str) -> Any:
    """As `parse_json`, for a stranger's text in which more may follow. Its integers have at most 64
    bits or so, and 8.0 is one of them, as in JSON's own schemas."""
    try:
        return _PREFIX_DECODER.raw_decode(text)[0]
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def map_texts(document: Any, function: Callable[[str], str], depth: int = 0) -> Any:
    """The document with every text in it replaced, keys too. Raises ValueError if it is nested too
    deeply."""
    if depth > MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(document, str):
        return function(document)
    if isinstance(document, dict):
        return {
            function(key): map_texts(value, function, depth + 1) for key, value in document.items()
        }
    if isinstance(document, list):
        return [map_texts(value, function, depth + 1) for value in document]
    return document


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _parse_int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too large")
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:_MOST_DIGITS]} is too large for a measurement")
    return value


def _parse_number(text: str) -> float:
    value = _parse_float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_PREFIX_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_int=_parse_int, parse_float=_parse_number
)
