"""Warnings of code that has no Progress to report to: what is read at first use, wherever that is."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def listen(listener: Callable[[str], None]) -> None:
    """Call this with each warning from now on, instead of an earlier listener."""
    _listeners[:] = [listener]


def warn(text: str) -> None:
    for listener in _listeners:
        listener(text)
