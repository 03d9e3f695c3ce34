"""A diagnosis as a page of one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .diagnosis import Diagnosis


def lines(diagnosis: Diagnosis, width: int | None) -> list[str]:
    """width: of the terminal, or None not to wrap."""
    raise NotImplementedError
